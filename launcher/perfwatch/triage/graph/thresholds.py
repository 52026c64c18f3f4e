"""Every number of the wait graph, with where it comes from.

Shares are of a core. "Measured" means on the recorded cases and on the drills of this repository.
"""

# Activity of a thread
FRESH_SECONDS = 10.0  # an older sample says nothing of now: the slowest round of samples takes less

# Sleeps
POLLING_SECONDS = 4.0  # a thread that sleeps for less, again and again, polls
DEADLINE_SECONDS = 8.0  # torch's loader polls every 5 s; a longer timeout was chosen by the program
RATIONED_SECONDS = 5.0  # a process that was stopped and continued before is given so long

# Loops
LOOP_SECONDS = 30.0  # of samples from which the loop around a thread is found
STAYS_SHARE = 0.9  # of the samples in which a frame is found that stays
GENERATOR_SHARE = 0.5  # of the samples, for a generator: else the body of the loop over it takes the time
ONE_CALL_SAMPLES, ONE_CALL_SHARE = 60, 0.95  # measured: 3 % of nonblocking samples are torn
GIL_SAMPLES = 3

# Silence, in seconds of silence before a wait is called hung (SETTLED and OPEN are in ``decide``)
ROUNDING_SECONDS = 0.05
ANSWER_SECONDS = 5.0  # a flight recorder answers within one round
WATCHED_SECONDS = 4.0  # of watching, before claims by text or elimination count
OUTSIDERS_SECONDS = 1.0  # of watching, before a process outside of the job counts as idle
COUNTS_TIMES = 5.0  # times the hang timeout, for a loop that counts
LONGEST_STEPS = 3.0  # times the longest step of this run
FLOW_SECONDS = 5.0  # of traffic between the ranks
BYTES_SECONDS = 10.0  # of a socket

# Training
STEPS_SECONDS, STEPS_SAMPLES = 20.0, 20
