"""Old name of groups, until no module imports it."""

from perfwatch.triage.ranks.groups import counted_apart

__all__ = ["counted_apart"]
