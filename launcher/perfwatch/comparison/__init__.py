"""Compare two recordings: ``compare(a, b)`` is a pure function of both. README.md lists the modules."""
