"""Old name of missing, until no module imports it."""

from perfwatch.triage.ranks.missing import (
    absent,
    awaited,
    blamed,
    departed,
    have_met,
    missing,
    whole,
)

__all__ = ["absent", "awaited", "blamed", "departed", "have_met", "missing", "whole"]
