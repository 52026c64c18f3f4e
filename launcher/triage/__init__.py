"""Triage: from a recording to one verdict, by pure functions. ``diagnose`` is the way in, ``rules`` the catalogue."""
