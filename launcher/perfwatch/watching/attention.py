"""What to sample now: when each item is due, which processes come first, and what makes a calm job suspect."""

from collections.abc import Callable, Iterable, Iterator

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, median
from perfwatch.triage.job import Job
from perfwatch.triage.questions import (
    STARVING_SHARE,
    card_name,
    data_wait_share,
    endless_loop,
    hardware_errors,
    has_just_been_sampled,
    lost_cards,
    unending_kernel_seconds,
)
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, GpuSilence

SHIFT_RATIO = 1.3  # the newest steps against the ones before: a calm job that slows down so much is looked at
NEWEST_STEPS = 8
EARLIER_STEPS = 24
ERROR_SECONDS = 30.0  # after it was announced: by then the job stands, or does not care
SILENCE_SECONDS = 3.0  # one reading a second while it lasts
SPUN_SECONDS = 3.0
WAITS_FOR_DATA = 0.1  # of the time
MORE_WAITING = 0.2  # of the time, than when it was last looked at closely
ANSWER_HOLDS_SECONDS = 1800.0
MOST_OUTSIDE = 8  # a pipe has one writer, mostly, and a lock one holder, which may have started others
UNLEFT_SECONDS = 20.0  # that it was seen: at the second sample of a calm job, a minute later


class Schedule:
    """When each thing is due again.

    Args:
        now: seconds since the session began.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._due: dict[str, float] = {}

    def due(self, what: str, every_seconds: float) -> bool:
        """True if it is time; if so, the next time is set."""
        if self._now() < self._due.get(what, 0.0):
            return False
        self._due[what] = self._now() + every_seconds
        return True

    def sooner(self, what: str, seconds: float) -> None:
        """This is due so soon, if it was not to be even sooner."""
        self._due[what] = min(self._due.get(what, 0.0), self._now() + seconds)

    def hasten(self, *what: str) -> None:
        """These are due at once."""
        for one in what:
            self._due.pop(one, None)


def nearest(job: Job, alive: Iterable[int], most: int) -> list[int]:
    """The ranks, then what belongs to them, then the rest of the job; services last. At most ``most``."""
    alive = list(alive)
    members = job.members
    order = [rank.pid for rank in job.ranks if rank.alive]
    order += [
        pid for pid in alive if pid in members and members[pid].rank_pid is not None and members[pid].role != "service"
    ]
    order += [pid for pid in alive if pid not in members or members[pid].role != "service"]
    living = set(alive)
    return [pid for pid in dict.fromkeys(order) if pid in living][:most]


def feeding(history: History, alive: Iterable[int]) -> list[int]:
    """Processes outside of the job for which one of it may wait: whether they work is worth a look.

    They are at the other end of a pipe or a connection of its, hold an eventfd of its or a lock on a file of its, or were started by
    one that does.
    """
    job = set(alive)
    seen = (history.latest(Descriptor, *key) for pid in job for key in history.of(Descriptor, pid))
    found = dict.fromkeys(pid for one in seen if one is not None for pid in _others_at(one.reading))
    return [pid for pid in found if pid not in job][:MOST_OUTSIDE]


def _others_at(file: Descriptor) -> Iterator[int]:
    """The processes that hold the other end of a file, or the same eventfd, or a lock on it."""
    if file.kind in ("pipe", "fifo", "eventfd"):
        yield from file.writers if "r" in file.access else ()
        yield from file.readers if "w" in file.access and file.kind != "eventfd" else ()
    if file.socket is not None:
        yield from file.socket.peer_pids
    yield from (*file.lock_holders, *file.holders_started)


class Interest:
    """True if samples of the ranks alone call for a look at the others: a loss was seen, or it is not known which process makes their data.

    What a close look has answered is not asked again for a good while, unless the ranks wait for data more than they did then:
    a loop that waits a little waits now less and now more, and each close look costs what an hour of calm does.
    """

    def __init__(self) -> None:
        self._answered, self._holds_until = 0.0, 0.0

    def asks(self, case: Case, verdict: Verdict) -> bool:
        """True if to look closely now."""
        if verdict.state == "slow":
            return True
        enough = {"inconclusive": WAITS_FOR_DATA, "healthy": STARVING_SHARE}.get(verdict.state)
        return enough is not None and data_wait_share(case) >= max(enough, self._known(case))

    def answered(self, case: Case) -> None:
        """A close look has ended: what the ranks wait now, and waited when it began, is no riddle."""
        self._answered = max(self._known(case), data_wait_share(case) + MORE_WAITING)
        self._holds_until = case.at + ANSWER_HOLDS_SECONDS

    def _known(self, case: Case) -> float:
        return self._answered if case.at < self._holds_until else 0.0


def leaves_open(verdict: Verdict | None) -> bool:
    """True if the stacks alone have not explained where the time of a running thread goes."""
    if verdict is None or verdict.state in ("inconclusive", "healthy"):
        return True
    return verdict.cause in ("contended_cpu", "serial_loading", "regressed")


def alarm(case: Case) -> str:
    """What makes a calm job suspect, in words; empty when nothing does."""
    for rank in case.ranks:
        now = case.progress[rank.pid]
        name = f"rank {rank.rank}" if rank.rank is not None else f"pid {rank.pid}"
        if has_just_been_sampled(case, rank):
            continue
        if now.kind in ("still", "busy") or (now.kind != "moving" and now.steps is not None and now.steps.count > 0):
            return f"{name}: {now.basis}"
        if (loop := endless_loop(case, rank)) is not None and loop.seconds >= UNLEFT_SECONDS:
            return f"{name}: one loop around forward passes in {loop.samples} samples"
        if now.steps is not None and _slower(now.steps.intervals):
            return f"{name}: steps take longer than before"
    if any(member.ended for member in case.job.ranks):
        return "a rank has ended"
    return _of_cards(case)


def _of_cards(case: Case) -> str:
    """What the GPUs and their driver show, before the steps are late: an error, a silence, kernels that do not end."""
    for error in hardware_errors(case):
        if case.at - error.at < ERROR_SECONDS:
            return f"the GPU driver announced {error.shown()}"
    for key in case.history.entities(GpuSilence):
        silence = case.history.latest(GpuSilence, *key)
        if silence is not None and case.at - silence.at < SILENCE_SECONDS:
            return f"the GPU driver does not answer for {duration(silence.reading.waited_seconds)}"
    for card in lost_cards(case.history):
        if case.at - card.at < ERROR_SECONDS:
            return f"{card_name(case.history, card.reading.uuid)} is lost"
    for rank in case.ranks:
        if (spun := unending_kernel_seconds(case, rank, SPUN_SECONDS)) >= SPUN_SECONDS:
            return f"a kernel of pid {rank.pid} has not ended for {duration(spun)}"
    return ""


def _slower(intervals: tuple[float, ...]) -> bool:
    earlier, newest = intervals[:-NEWEST_STEPS], intervals[-NEWEST_STEPS:]
    if len(earlier) < EARLIER_STEPS:
        return False
    return (median(newest) or 0.0) > SHIFT_RATIO * (median(earlier) or 0.0)
