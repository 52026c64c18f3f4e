"""Old name of groups, until no module imports it."""

from perfwatch.triage.ranks.groups import (
    GroupKey,
    growing,
    recorded_standing,
    recorder_owes,
    standings,
    unanswered,
)

__all__ = ["GroupKey", "growing", "recorded_standing", "recorder_owes", "standings", "unanswered"]
