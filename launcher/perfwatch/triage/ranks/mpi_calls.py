"""Old name of calls, until no module imports it."""

from perfwatch.triage.ranks.calls import waits_for_ranks

__all__ = ["waits_for_ranks"]
