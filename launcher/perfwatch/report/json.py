"""A verdict as one JSON object on one line: schema ``perfwatch.verdict/1``, every field present, unknown ones null."""

import msgspec

from perfwatch.verdict import Verdict


def as_json(verdict: Verdict) -> str:
    """The object that ``attach --json`` and ``replay --json`` print, without a line end."""
    return msgspec.json.encode(verdict).decode()
