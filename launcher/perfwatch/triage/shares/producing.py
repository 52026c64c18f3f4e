"""What the workers of a starving rank do with their time: compute, read files, wait for the network, or for something else."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.history import median
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.shares.data_makers import WINDOW_SECONDS
from perfwatch.triage.shares.starving import Starving
from perfwatch_probes import readings as r

BLOCK_READS = 256 * 1024  # bytes per second from the block layer: below it the page cache serves
HARD_READS = 256 * 2**20  # bytes per second: of so many, much of the run time is the kernel's, for the reads
HARD_SHARE = 0.4
READING_SHARE = 0.2  # of the looks at workers; those that compute are below 0.1
WANTING_SHARE = 0.5  # of a core: below it workers wait more than they compute


@dataclass(frozen=True)
class Work:
    """What the workers do, as shares of their time."""

    runs: float  # on a core, median of the workers
    wants: float  # the same, waiting for a core included
    files: float  # in reads of files
    sockets: float
    bytes_per_second: float  # from the block layer, all workers together
    where: str  # the commonest mount or peer
    computing: int  # how many of them compute rather than wait
    measured: bool  # whether how much they run is known: it takes two looks at one that runs

    @property
    def mostly(self) -> str:
        """``files``, ``sockets``, ``computing``, or ``waiting`` for something else; ``unknown`` before the second look."""
        reads = max(self.files, self.sockets)
        hard = self.bytes_per_second >= HARD_READS and self.files >= HARD_SHARE
        if hard or reads >= max(READING_SHARE, self.runs):
            return "files" if self.files > self.sockets else "sockets"
        if not self.measured:
            return "unknown"
        return "computing" if self.wants >= WANTING_SHARE else "waiting"


def work(case: Case, found: Starving) -> Work:
    """What the workers of a starving rank do, from their counters, their blocked calls and their stacks."""
    runs, wants, looks, files, sockets, rate, running = [], [], 0, 0, 0, 0.0, False
    places: Counter[str] = Counter()
    for pid, tid in found.producers:
        moved = motion(case.history, pid, tid, WINDOW_SECONDS)
        running = running or moved.state == "R"
        own = case.history.rate(r.Thread, pid, tid, of=lambda t: t.read_bytes, seconds=WINDOW_SECONDS) or 0.0
        rate += own
        if moved.run_share is not None:
            computes = moved.run_share - (_in_kernel(case, pid, tid) if own > BLOCK_READS else 0.0)
            runs.append(max(0.0, computes))
            wants.append(max(0.0, computes) + (moved.delay_share or 0.0))
        for seen in case.history.series(r.Thread, pid, tid, seconds=WINDOW_SECONDS):
            looks += 1
            kind = _waits_on(case, seen.reading)
            files += kind == "file"
            sockets += kind == "socket"
        places.update(_places(case, pid))
    in_files, in_sockets = (files / looks, sockets / looks) if looks else (0.0, 0.0)
    wanted = median(wants) or 0.0
    by_name = max((seen.share("http", "ssl") for _, _, seen in found.profiles(case)), default=0.0)
    in_sockets = max(in_sockets, min(by_name, 1.0 - wanted))  # who runs in a client's code waits for no server
    if rate > BLOCK_READS:
        in_files = max(in_files, 1.0 - in_sockets - wanted)
    where = places.most_common(1)[0][0] if places else ""
    computing = sum(one >= WANTING_SHARE for one in wants)
    return Work(median(runs) or 0.0, wanted, in_files, in_sockets, rate, where, computing, bool(runs) or not running)


def _in_kernel(case: Case, pid: int, tid: int) -> float:
    """Share of a core that a thread spends in system calls; of one that reads from a disk, that is reading, not computing."""
    return case.history.rate(r.Thread, pid, tid, of=lambda t: t.system_seconds, seconds=WINDOW_SECONDS) or 0.0


def _waits_on(case: Case, thread: r.Thread) -> str:
    if thread.state == "D" or (thread.wait is not None and thread.wait.kind in ("page_fault", "sync", "stat")):
        return "file"
    wait = thread.wait
    if wait is None:
        return ""
    if wait.kind in ("recv", "connect"):
        return "socket"
    fds = [wait.fd] if wait.fd is not None else [polled.fd for polled in wait.polled]
    for fd in fds:
        seen = case.history.latest(r.Descriptor, thread.pid, fd)
        if seen is not None and seen.reading.kind in ("file", "socket"):
            inner = seen.reading.socket
            return "" if inner is not None and inner.family == "unix" else seen.reading.kind
    return ""


def _places(case: Case, pid: int) -> Iterator[str]:
    for key in case.history.of(r.Descriptor, pid):
        seen = case.history.latest(r.Descriptor, *key)
        if seen is None:
            continue
        if seen.reading.kind == "file" and seen.reading.mount:
            yield f"{seen.reading.mount}, {seen.reading.filesystem}"
        elif seen.reading.socket is not None and seen.reading.socket.peer and seen.reading.socket.family != "unix":
            yield seen.reading.socket.peer
