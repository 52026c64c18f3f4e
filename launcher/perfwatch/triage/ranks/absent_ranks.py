"""Old name of missing, until no module imports it."""

from perfwatch.triage.ranks.missing import AbsentRanks

__all__ = ["AbsentRanks"]
