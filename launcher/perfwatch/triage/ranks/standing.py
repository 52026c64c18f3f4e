"""Old name of groups, until no module imports it."""

from perfwatch.triage.ranks.groups import UNHEARD, Seat, Standing

__all__ = ["UNHEARD", "Seat", "Standing"]
