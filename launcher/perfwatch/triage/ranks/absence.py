"""Old name of calls, until no module imports it."""

from perfwatch.triage.ranks.calls import (
    RUNS,
    in_collective,
    listed,
    rank_of,
)

__all__ = ["RUNS", "in_collective", "listed", "rank_of"]
