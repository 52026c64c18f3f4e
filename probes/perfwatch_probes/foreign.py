"""Texts and numbers that a foreign file or service gave, made into such as a recording can hold.

Python itself refuses to write an integer of more than 4,300 digits, or what is nested too deep, as text, and no recording takes
half a character or an integer beyond 64 bits: each of these would end the whole look for the sake of one field.
"""

from typing import Any

BEYOND = 2**62  # larger than any count, and within 64 bits


def text(value: Any, most: int) -> str:
    """A text, cut to so many characters, or a number as text; empty for anything else."""
    if isinstance(value, int):
        value = str(value) if abs(value) < BEYOND else ""
    if not isinstance(value, str):
        return ""
    return value[:most] if value.isascii() else value[:most].encode("utf-8", "replace").decode()


def number(value: Any) -> int | None:
    """An integer that a recording can hold; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < BEYOND else None
