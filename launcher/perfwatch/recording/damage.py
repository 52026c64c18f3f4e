"""What a decoder raises at bytes that are torn, garbled, or made to harm; and what it accepts although no job can mean it."""

import re
from typing import Any

import msgspec

from perfwatch_probes.bounds import LARGEST_NUMBER, MOST_NESTED


class Implausible(ValueError):
    """Well-formed, but with a time, rank, number or depth that no recording of a job has."""


# msgspec says UnicodeDecodeError, which is none of its own, at a byte within a string that is no UTF-8; nesting without end recurses.
DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Implausible)

# A number beyond 64 bits has so many digits in a row, or a positive exponent of two. In a text they may be anything.
_LARGE = re.compile(rb"[0-9]{20}|[0-9.][eE]\+?[0-9]{2}")


def check_numbers(line: bytes, nested: bool = False) -> None:
    """Raise Implausible where a number in this JSON is larger than any counter of the kernel, or ``nested`` objects too deep.

    Arithmetic on such numbers overflows far from where they were read. Most lines are known to have none by one search.

    Args:
        line: JSON that was decoded before.
        nested: it holds objects of any form, whose depth the types do not bound.
    """
    if (nested or _LARGE.search(line)) and not _plausible(msgspec.json.decode(line), 0):
        raise Implausible(f"it holds a number beyond 64 bits, or more than {MOST_NESTED} objects in each other")


def _plausible(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        return depth < MOST_NESTED and all(_plausible(one, depth + 1) for one in value.values())
    if isinstance(value, list):
        return depth < MOST_NESTED and all(_plausible(one, depth + 1) for one in value)
    return not isinstance(value, int | float) or abs(value) <= LARGEST_NUMBER
