"""Old name of same_call, until no module imports it."""

from perfwatch.triage.ranks.same_call import carried, travels

__all__ = ["carried", "travels"]
