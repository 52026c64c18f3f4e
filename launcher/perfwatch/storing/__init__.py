"""How a session lies on disk: written by a process of its own, thinned, followed while it grows, redacted, sent."""
