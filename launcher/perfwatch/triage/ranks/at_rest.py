"""Old name of absentee, until no module imports it."""

from perfwatch.triage.ranks.absentee import at_rest

__all__ = ["at_rest"]
