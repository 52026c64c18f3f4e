"""For how long what may still clear up on its own can be silent before it is called hung, unless the user says otherwise.

A file of its own, for everything reads it: ``perfwatch run`` before anything else is loaded, and triage of a session that does
not say.
"""

HANG_TIMEOUT_SECONDS = 60.0
