"""Text for people, without rich: what comes from the job (file names, thread names) is made harmless first."""

import os
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

# Control, format (bidirectional overrides), surrogate, private and unassigned characters can hide or rewrite a line.
_HOSTILE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_NOT_ASCII = re.compile(r"[^ -~]")
_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
_NEXT_UNIT = 0.9995  # 999.6 ms are 1.0 s


def clean(text: str) -> str:
    """One line: tabs and line ends become spaces, whatever could steer a terminal becomes ``?``."""
    if text.isprintable():
        return text
    return "".join(
        " " if letter in "\t\n\r" else "?" if unicodedata.category(letter) in _HOSTILE else letter for letter in text
    )


def json_text(value: Any) -> str:
    """One line of JSON that a terminal can show: control characters beyond ASCII and bidirectional overrides are escaped, too."""
    import msgspec  # the text of the launcher is small without it

    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() else _NOT_ASCII.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    import json

    return json.dumps(found[0])[1:-1] if unicodedata.category(found[0]) in _HOSTILE else found[0]


def duration(seconds: float | None, figures: int = 2) -> str:
    """The one form of a time span: ``850 ms``, ``6.2 s``, ``42 s``, ``3 min 20 s``, ``3 h 05 min``, ``11 d 13 h``; ``unknown`` for None.

    Args:
        seconds: not negative.
        figures: of a value below 100 s at least; three where steps are compared (``38.2 ms``, ``1.46 s``).
    """
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 100:
        unit, scale = next(((unit, scale) for unit, scale in _UNITS if seconds * scale >= _NEXT_UNIT), _UNITS[-1])
        value = seconds * scale if seconds > 0 else 0.0
        return f"{value:.{max(0, figures - _digits(value))}f} {unit}" if value else "0 s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _digits(value: float) -> int:
    return 1 if value < 10 else 2 if value < 100 else 3


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


def command_line(command: tuple[str, ...]) -> str:
    """At a glance the program matters, not where its interpreter is installed."""
    return clean(" ".join([*(os.path.basename(word) for word in command[:2]), *command[2:]]))
