"""Probes: each file reads one source of truth about the job or the machine. They look and never touch.

``readings`` is the schema of everything that they can say, ``probe`` the contract, ``filesystem`` the rooted way to /proc and /sys.
"""
