"""Readers of what profilers wrote: streamed, bounded, and never trusted. README.md lists the modules."""
