"""A verdict as one JSON object on one line: schema ``perfwatch.verdict/1``, every field present, unknown ones null.

``confidence`` is a number: 0.95 certain, 0.8 high, 0.65 medium, 0.5 low (a suspicion), 0 no claim.
"""

import msgspec

from perfwatch.verdict import Verdict


def as_json(verdict: Verdict) -> str:
    """The object that ``attach --json`` and ``replay --json`` print, without a line end."""
    return msgspec.json.encode(verdict).decode()
