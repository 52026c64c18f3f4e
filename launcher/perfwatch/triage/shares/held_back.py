"""How much of the time a training thread's writes have to wait: whoever reads what it says is slower than it is."""

from perfwatch.triage.case import Case
from perfwatch.triage.present import open_file
from perfwatch.triage.roles.job import Member
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch_probes.readings import Thread

STANDARD_OUTPUTS = (1, 2)


def held_back(case: Case, rank: Member) -> float:
    """Share of the looks at which it was blocked in a write to its stdout or stderr, or to a pipe to another program.

    What ``multiprocessing`` sends to a worker is work, and no output.
    """
    looks = case.history.series(Thread, rank.pid, case.progress[rank.pid].thread, seconds=WINDOW_SECONDS)
    sends = case.profile(rank, WINDOW_SECONDS).seen("mp_send")
    return sum(_waits(case, one.reading, sends) for one in looks) / len(looks) if looks else 0.0


def _waits(case: Case, look: Thread, sends: bool) -> bool:
    wait = look.wait
    if wait is None or wait.kind != "write" or wait.fd is None:
        return False
    file = open_file(case.history, look.pid, look.tid, wait.fd) if not sends else None
    return wait.fd in STANDARD_OUTPUTS or (file is not None and file.reading.kind in ("pipe", "fifo"))
