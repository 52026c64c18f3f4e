"""Text for people, without rich: what comes from the job (file names, thread names) is made harmless first."""

import unicodedata

# Control, format (bidirectional overrides), surrogate, private and unassigned characters can hide or rewrite a line.
_HOSTILE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


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
