"""Old name of same_call, until no module imports it."""

from perfwatch.triage.ranks.same_call import stands_out

__all__ = ["stands_out"]
