"""A session of our own whose nice value counts.

With autogroup (``sched(7)``, on by default in most distributions) the kernel first divides the CPU between sessions and then
within each by nice value. A new session starts at nice 0, however nice its leader is, so each helper that leaves the terminal
with ``setsid`` would compete with the job at full weight.
"""

import os


def start_session() -> None:
    """Become the leader of a new session, for the terminal's signals are not for us, and keep our nice value in it."""
    os.setsid()
    keep_nice_value()


def keep_nice_value() -> None:
    """Give the session that this process leads the nice value of the process. Only ever lowers a priority."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice <= 0:
        return
    try:
        with open("/proc/self/autogroup", "w") as group:
            group.write(str(nice))
    except OSError:
        pass  # a kernel without autogroup, a read-only /proc, or too many such requests at once
