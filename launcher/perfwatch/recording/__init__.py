"""A session: what was read, what was said, and when; how it lies on disk, is thinned, redacted, found again and packed."""
