"""Every number of the wait graph, with where it comes from; those about loops stand in ``moving/loops.py``.

Shares are of a core. "Measured" means on the recorded cases and on the drills of this repository.
"""

# Activity of a thread
FRESH_SECONDS = 10.0  # an older sample says nothing of now: the slowest round of samples takes less

# Sleeps
POLLING_SECONDS = 4.0  # a thread that sleeps for less, again and again, polls
DEADLINE_SECONDS = 8.0  # torch's loader polls every 5 s; a longer timeout was chosen by the program
RATIONED_SECONDS = 5.0  # a process that was stopped and continued before is given so long

# Silence, in seconds of silence before a wait is called hung (SETTLED and OPEN are in ``decide``)
ROUNDING_SECONDS = 0.05
ANSWER_SECONDS = 5.0  # a flight recorder answers within one round
WATCHED_SECONDS = 4.0  # of watching, before claims by text or elimination count
OUTSIDERS_SECONDS = 1.0  # of watching, before a process outside of the job counts as idle
ONE_CALL_TIMES = 0.5  # times the hang timeout, for one call of CPython's own C: a regular expression
STARVED_TIMES = 0.2  # the same, where the training thread asks for the GIL meanwhile and does not get it: it is not waiting for this call
FLOW_SECONDS = 5.0  # of traffic between the ranks
BYTES_SECONDS = 10.0  # of a socket

# Training
STEPS_SECONDS, STEPS_SAMPLES = 20.0, 20
