"""What counts as work: one number for each meaning, for threads, for processes, for the wait graph and for the rules.

Shares are of a core. "Measured" means on the recorded cases and on the drills of this repository.
"""

RUNS_SHARE = 0.5  # a thread above this runs, whatever the moment of a sample says
SIGN_OF_LIFE = 0.05  # measured: heartbeat and monitoring threads stay below 0.02, workers above 0.2
STIRS_SHARE = 0.002  # measured: blocked threads stay below 0.001
OF_OTHER_THREADS = 0.3  # of a process' CPU time: the two are read at different moments
ARRIVING_BYTES = 16 * 1024.0  # per second: answers to what is asked again and again are fewer
WORKS_BYTES = 4096.0  # per second: one page; a heartbeat sends less than 1 KiB
FEW_FAULTS_PER_SECOND = 100.0  # minor ones, of a process; a huge page is cleared in 0.1 to 0.2 ms
LIBRARIES_BYTES = 2**20  # per second: what short-lived children read of their libraries
USAGE_SECONDS = 10.0  # of CPU time and bytes, two rounds of the slowest probe
TRAFFIC_SECONDS = 12.0  # of connections: read every two seconds of a suspicion, and every ten of a calm job, these were read twice then
MEANT_SECONDS = 600.0  # a longer sleep is taken for one that is not meant to end
KEEPS_WAITING_SECONDS = 240.0  # a sleep for which a training thread has to wait is seldom meant to be longer
LATE_SECONDS = 1.0  # after its deadline a thread has run again
LOOP_SECONDS = 30.0  # of samples from which the loop around a thread is found
LATELY_SECONDS = 12.0  # of stacks that tell what it is at; a crowded machine delays a record by seconds
