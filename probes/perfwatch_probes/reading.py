"""The common root of everything that a probe can say."""

import msgspec

SECONDS_DECIMALS = 6  # of a duration that a probe computes: further digits are noise, and lengthen each line


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """The common root; each subclass is one kind of line in ``readings.jsonl``."""
