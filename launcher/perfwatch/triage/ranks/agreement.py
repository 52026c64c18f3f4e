"""Old name of groups, until no module imports it."""

from perfwatch.triage.ranks.groups import disagreement

__all__ = ["disagreement"]
