"""What the rules about data starvation share: how much of the time the training thread waits for its loader, and its workers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show
from perfwatch.triage.history import median
from perfwatch.triage.job import Member
from perfwatch.triage.motion import motion
from perfwatch.triage.profile import Profile
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Alternative, Culprit, Evidence, Finding

WAITING_SHARE = 0.2  # of the training thread's time; healthy loops with prefetch stay below 0.05
SURE_SHARE = 0.4
FEW_SAMPLES = 20
WINDOW_SECONDS = 20.0
BLOCK_READS = 256 * 1024  # bytes per second from the block layer: below it the page cache serves


@dataclass(frozen=True)
class Starving:
    """A rank whose training thread waits for data."""

    rank: Member
    waiting: float  # share of its time
    profile: Profile
    worker_pids: tuple[int, ...]

    @property
    def workers(self) -> int:
        """How many workers live."""
        return len(self.worker_pids)

    def worker_line(self, case: Case) -> str | None:
        """The program's own line where the workers spend most of their time."""
        best: tuple[int, r.Frame] | None = None
        for one in case.worker_profiles(self.rank, WINDOW_SECONDS).values():
            frame = one.top_line()
            if frame is not None and (best is None or one.samples > best[0]):
                best = (one.samples, frame)
        return show(best[1]) if best else None

    def finding(
        self,
        case: Case,
        cause: Cause,
        *,
        summary: str,
        evidence: tuple[Evidence, ...],
        alternatives: tuple[Alternative, ...] = (),
        next: tuple[str, ...] = (),
    ) -> Finding:
        """A slow finding whose confidence grows with the share of time lost."""
        confidence = 0.75 + 0.2 * min(1.0, (self.waiting - WAITING_SHARE) / (SURE_SHARE - WAITING_SHARE))
        waits = case.saw(
            "stack",
            f"pid {self.rank.pid}",
            "the training thread waits for its loader",
            f"{self.waiting:.0%} of {self.profile.samples} samples",
            "below 5 %",
        )
        culprits = tuple(
            Culprit(pid=self.rank.pid, rank=self.rank.rank, worker_pid=pid, frame=show(one.top_line()))
            for pid, one in case.worker_profiles(self.rank, WINDOW_SECONDS).items()
        )
        return Finding(
            cause=cause.name,
            state="slow",
            summary=summary,
            confidence=round(confidence, 2),
            owner=cause.owner,
            culprits=culprits,
            evidence=(waits, *evidence),
            alternatives=alternatives,
            next=next,
        )


def starving(case: Case) -> Starving | None:
    """The rank that waits for data most, if it waits more than a healthy one does."""
    worst: Starving | None = None
    for rank in case.ranks:
        workers = tuple(w.pid for w in case.job.workers(rank.pid) if w.alive)
        seen = case.profile(rank, WINDOW_SECONDS)
        if not workers or seen.samples < FEW_SAMPLES:
            continue
        waiting = seen.share("loader_wait")
        if waiting >= WAITING_SHARE and (worst is None or waiting > worst.waiting):
            worst = Starving(rank, waiting, seen, workers)
    return worst


def running_share(case: Case, found: Starving) -> float | None:
    """Median share of a core that the workers' main threads use (or want: run delay counts)."""
    shares = []
    for pid in found.worker_pids:
        moved = motion(case.history, pid, pid, WINDOW_SECONDS)
        if moved.run_share is not None:
            shares.append(moved.run_share + (moved.delay_share or 0.0))
    return median(shares)


@dataclass(frozen=True)
class Reads:
    """What the workers wait for, as shares of the looks at their main threads."""

    files: float
    sockets: float
    bytes_per_second: float  # from the block layer, all workers together
    where: str  # the commonest mount or peer


def reading_share(case: Case, found: Starving) -> Reads:
    """How often the workers were in reads of files and in reads of sockets."""
    looks = files = sockets = 0
    rate = 0.0
    places: Counter[str] = Counter()
    for pid in found.worker_pids:
        for seen in case.history.series(r.Thread, pid, pid, seconds=WINDOW_SECONDS):
            looks += 1
            kind = _waits_on(case, seen.reading)
            files += kind == "file"
            sockets += kind == "socket"
        rate += case.history.rate(r.Thread, pid, pid, of=lambda t: t.read_bytes, seconds=WINDOW_SECONDS) or 0.0
        places.update(_places(case, pid))
    frames = [one.share("http", "ssl") for one in case.worker_profiles(found.rank, WINDOW_SECONDS).values()]
    by_frames = max(frames, default=0.0)
    share = files / looks if looks else 0.0
    if rate > BLOCK_READS:
        share = max(share, 1.0 - by_frames - (running_share(case, found) or 0.0))
    return Reads(
        share, max(sockets / looks if looks else 0.0, by_frames), rate, places.most_common(1)[0][0] if places else ""
    )


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
    for key in case.history.entities(r.Descriptor):
        seen = case.history.latest(r.Descriptor, *key) if key[0] == pid else None
        if seen is None:
            continue
        if seen.reading.kind == "file" and seen.reading.mount:
            yield f"{seen.reading.mount}, {seen.reading.filesystem}"
        elif seen.reading.socket is not None and seen.reading.socket.peer and seen.reading.socket.family != "unix":
            yield seen.reading.socket.peer
