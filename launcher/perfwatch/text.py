"""Text for people, without rich: what comes from the job (file names, thread names) is made harmless first."""

import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import IO

# Control, format (bidirectional overrides), surrogate, private and unassigned characters can hide or rewrite a line.
_HOSTILE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
_WHOLE = 99.95  # from here on whole numbers have three figures


def clean(text: str) -> str:
    """One line: tabs and line ends become spaces, whatever could steer a terminal becomes ``?``."""
    if text.isprintable():
        return text
    return "".join(
        " " if letter in "\t\n\r" else "?" if unicodedata.category(letter) in _HOSTILE else letter for letter in text
    )


def duration(seconds: float | None) -> str:
    """As people say it: ``0.4 s``, ``42 s``, ``6 min 52 s``, ``3 h 05 min``, ``2 d 4 h``; ``unknown`` for None."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def short_time(seconds: float) -> str:
    """Of a step or a window, three figures in the unit that fits: ``1.5 s``, ``38.2 ms``, ``412 us``; ``3,600 s``."""
    unit, scale = next(((unit, scale) for unit, scale in _UNITS if seconds * scale >= 1), _UNITS[-1])
    value = seconds * scale
    return f"{value:,.0f} {unit}" if value >= _WHOLE else f"{value:.3g} {unit}"


def listed(hosts: Iterable[str], most: int = 4) -> str:
    """``a, b, c and 5 more hosts``."""
    every = list(hosts)
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more} more hosts" if more > 0 else "")


def say(stream: IO[str], text: str) -> None:
    """Write one line to a stream. A terminal that is gone is no error: the caller goes on."""
    with suppress(OSError):
        stream.write(f"perfwatch: {clean(text)}\n")
        stream.flush()
