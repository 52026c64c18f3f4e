"""Old name of calls, until no module imports it."""

from perfwatch.triage.ranks.calls import exchange

__all__ = ["exchange"]
