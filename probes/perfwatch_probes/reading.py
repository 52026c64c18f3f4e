"""The common root of everything that a probe can say."""

import msgspec


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """The common root; each subclass is one kind of line in ``readings.jsonl``."""
