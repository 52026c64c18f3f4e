"""Old name of absentee, until no module imports it."""

from perfwatch.triage.ranks.absentee import prepare

__all__ = ["prepare"]
