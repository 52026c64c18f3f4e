"""Old name of absentee and calls, until no module imports it."""

from perfwatch.triage.ranks.absentee import left_over, others_train
from perfwatch.triage.ranks.calls import leaves

__all__ = ["leaves", "left_over", "others_train"]
