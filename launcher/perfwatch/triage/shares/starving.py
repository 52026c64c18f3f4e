"""How much of the time a training thread waits for data, and the workers, processes or threads that make it."""

from collections import Counter
from dataclasses import dataclass
from functools import partial

from perfwatch.triage.cards.gpu import Regime, regimes, saturated
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion, moves, was_at
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.data_makers import WORKING_SHARE, imports, producers, works
from perfwatch.triage.shares.profile import Profile, lasting
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    ENOUGH_SAMPLES,
    HIGH,
    LATELY_SECONDS,
    MEDIUM,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    TWICE,
)
from perfwatch.triage.shares.training import made_steps
from perfwatch.triage.shares.without_steps import gathers
from perfwatch.triage.slowness import LOST_SHARE, asleep_share
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, inner_tags, inside, show, tags, user_frame, user_frames
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Descriptor, Stack

WAITING_SHARE = 0.2  # of the training thread's time; healthy loops with prefetch stay below 0.05
BOTTLENECK_SHARE = 0.11  # less waiting is enough where the workers never wait for work themselves
SURE_SHARE = 0.4
LATE_SECONDS, LATE_STEPS = 3.0, 3.0  # the last step was so long ago at most, or so many times the longest: they go on
OWN_WAITS = ("mp_queue_get", "queue_get", "pool_wait", "futures_wait", "mp_receive")  # of a loop without a DataLoader
PHASE_SECONDS = 12.0  # of waits in a loop that makes no step, and nothing else: no step is that long for its data
STEP_TAGS = frozenset({"backward", "optimizer"})
STEP_CALLS = frozenset({"backward", "zero_grad"})


@dataclass(frozen=True)
class Starving:
    """A rank whose training thread waits for data."""

    rank: Member
    waiting: float  # share of its time
    profile: Profile
    producers: tuple[tuple[int, int], ...]  # (pid, tid) of the threads that make the data
    resting: int = 0  # other workers, which have nothing to do: the batches of all wait for their turn

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.producers) + self.resting

    @property
    def kind(self) -> str:
        """What they are, in words."""
        own = any(pid == self.rank.pid for pid, _ in self.producers)
        return f"{self.workers} {'thread' if own else 'worker'}{'' if self.workers == 1 else 's'}"

    def profiles(self, case: Case) -> list[tuple[int, int, Profile]]:
        """(pid, tid, samples) of each while it works at data, the one with most first."""
        found = []
        for pid, tid in self.producers:
            seen = lasting(case.history, pid, tid, LATELY_SECONDS)
            busy = Profile(tuple(one for one in seen.sights if works(one.reading)), seen.seconds)
            if busy.samples:
                found.append((pid, tid, busy))
        return sorted(found, key=lambda one: -one[2].samples)

    def line(self, case: Case) -> str | None:
        """The program's own line where the workers spend most of their time."""
        functions: Counter[tuple[str, str]] = Counter()
        lines: dict[tuple[str, str], Counter[str]] = {}
        for _, _, seen in self.profiles(case):
            for one in seen.sights:
                frame = user_frame(one.reading)
                if frame is not None:
                    key = (frame.function, frame.file)
                    functions[key] += one.reading.samples
                    lines.setdefault(key, Counter())[show(frame) or ""] += one.reading.samples
        return lines[functions.most_common(1)[0][0]].most_common(1)[0][0] if functions else None

    def summary(self, case: Case, doing: str, of_them: int | None = None) -> str:
        """``doing`` completes: the training thread waits for data so much of the time while 4 workers are ...

        of_them: how many do so, where it is not all.
        """
        alone = (self.workers if of_them is None else of_them) == 1
        line, verb = self.line(case), "is" if alone else "are"
        who = self.kind if of_them in (None, self.workers) else f"{of_them} of {self.kind}"
        told = f"the training thread waits for data {self.waiting:.0%} of the time while {who} {verb} {doing}"
        return told + (f", mostly at {line}" if line else "")

    def finding(
        self,
        case: Case,
        cause: Cause,
        *,
        summary: str,
        evidence: tuple[Evidence, ...],
        alternatives: tuple[Alternative, ...] = (),
        next: tuple[str, ...] = (),
        ceiling: float = CERTAIN,
    ) -> Finding:
        """A slow finding."""
        waits = case.saw(
            "stack",
            f"pid {self.rank.pid}",
            "the training thread waits for data",
            f"{self.waiting:.0%} of {self.profile.samples} samples",
            "below 5 %",
        )
        waiting = [c for c in regimes(case.history, self.rank.pid, LATELY_SECONDS)[:1] if c.waiting >= WAITING_SHARE]
        return Finding(
            cause=cause.name,
            state="slow",
            summary=summary,
            confidence=min(ceiling, self._ceiling(case), self._confidence(bool(waiting))),
            owner=cause.owner,
            culprits=tuple(self._culprit(pid, tid, show(seen.top_line())) for pid, tid, seen in self.profiles(case)),
            evidence=(waits, *evidence, *(_idles(case, card) for card in waiting)),
            alternatives=alternatives,
            next=next,
            lost_share=round(self.waiting, 3),
        )

    def _confidence(self, card_waits: bool) -> float:
        """From the share of time lost; a card that has nothing to do meanwhile is a second source."""
        if self.waiting >= (WAITING_SHARE if card_waits else SURE_SHARE):
            return CERTAIN
        return HIGH if self.waiting >= LOST_SHARE else MEDIUM

    def _ceiling(self, case: Case) -> float:
        """While another rank was hardly looked at, or waits elsewhere, it may be waiting for this one, which is then a straggler."""
        others = [case.profile(rank, LATELY_SECONDS) for rank in case.ranks if rank.pid != self.rank.pid]
        return MEDIUM if any(one.samples < ENOUGH_SAMPLES or _waits_for_ranks(one) for one in others) else 1.0

    def _culprit(self, pid: int, tid: int, frame: str | None) -> Culprit:
        worker = pid if pid != self.rank.pid else None
        return Culprit(pid=self.rank.pid, rank=self.rank.rank, worker_pid=worker, tid=tid, frame=frame)


def _idles(case: Case, card: Regime) -> Evidence:
    return case.saw(
        card.source,
        name_of(case.history, card.uuid),
        "the GPU waits too",
        f"nothing to do {card.waiting:.0%} of the time ({card.shown()})",
        "a kernel resident all the time",
    )


def awaits_data(stack: r.Stack) -> bool:
    """True if a training thread waits for its loader, or for a queue, a pool or a future of the program's own."""
    found = tags(stack)
    if "loader_wait" in found:
        return True
    return any_tag(found, *OWN_WAITS) and not any_tag(
        found, "exit", "collective", "rendezvous", "save", "compile", "loader"
    )


def starving(case: Case) -> Starving | None:
    """The rank that waits for data most, if it waits more than a healthy one does."""
    return case.history.once(("starving",), lambda: _starving(case))  # half a dozen rules ask


def _starving(case: Case) -> Starving | None:
    worst: Starving | None = None
    for rank in case.ranks:
        seen = case.profile(rank, LATELY_SECONDS)
        if (
            seen.samples < ENOUGH_SAMPLES
            or _stands(case, rank, seen)
            or saturated(case.history, rank.pid, LATELY_SECONDS)
        ):
            continue
        asleep = _asleep(case, rank)
        waiting = min(seen.share_where(awaits_data), asleep)
        if waiting < BOTTLENECK_SHARE or (worst is not None and waiting < worst.waiting):
            continue
        if for_training(case, rank, seen) is not True:
            continue
        makers = producers(case, rank)
        seen = _after_start(case, seen, makers)
        waiting = min(seen.share_where(awaits_data), asleep)
        if not makers or seen.samples < ENOUGH_SAMPLES:
            continue
        if _enough(case, waiting, makers):
            worst = Starving(rank, waiting, seen, makers)
        elif late := _never_idle(case, rank, makers):
            worst = Starving(rank, waiting, seen, late, len(makers) - len(late))
    return worst


def _asleep(case: Case, rank: Member) -> float:
    """Share of the time that the training thread does not run: in ``Queue.get`` it waits at most so long, and unpickles otherwise."""
    share = asleep_share(case, rank)
    return 1.0 if share is None else share


def for_training(case: Case, rank: Member, seen: Profile) -> bool | None:
    """True if steps are what the data is for: a pool or queue may as well serve a preparation, which is no slow training.

    A DataLoader says so itself. Else steps are counted, lately, or were seen, or the loop around the wait makes them. None: the
    innermost loop makes none, one around it does, and it was not left yet: a phase between two steps, or a part of each.
    """
    steps = case.progress[rank.pid].steps
    if steps is not None and steps.ago_seconds is not None and not steps.is_overdue(LATE_SECONDS, LATE_STEPS):
        return True
    if seen.seen("loader_wait"):
        return not _in_another_loop(case, rank, seen)
    if steps is not None and steps.ago_seconds is not None:
        return False
    around = [(frame, line) for frame, line in _around(case, seen) if line is not None]
    steps_seen = was_at(case.history, rank.pid, case.progress[rank.pid].thread, *STEP_TAGS)
    trains = steps_seen or any(names(line.loop_calls) & STEP_CALLS for _, line in around)
    loop = next((one for one in around if one[1].loops and not one[1].hands_out), None)
    if (
        not trains
        or loop is None
        or names(loop[1].loop_calls) & STEP_CALLS
        or seen.share_where(partial(inside, loop[0])) < 1.0
    ):
        return trains
    return None if seen.seconds < PHASE_SECONDS else False


def _around(case: Case, seen: Profile) -> list[tuple[r.Frame, r.SourceLine | None]]:
    """The program's own lines around the newest wait for data, innermost first, and their texts."""
    waits = next((one.reading for one in reversed(seen.sights) if awaits_data(one.reading)), None)
    return [(frame, line_of(case.history, frame)) for frame in (user_frames(waits) if waits is not None else ())]


def _in_another_loop(case: Case, rank: Member, seen: Profile) -> bool:
    """True if another loop than the one that made steps takes the data: it gathers statistics, or gradients that update nothing.

    Where none was met, the loop makes gradients by its text, and none around it a step, or only looks at what it takes.
    """
    lines = _around(case, seen)
    loop = next((frame for frame, line in lines if line is None or not line.hands_out), None)
    made = made_steps(case, rank, loop) if loop is not None else None
    if made is not None:
        return not made
    called = [names(line.loop_calls) for _, line in lines if line is not None]
    return gathers(case, rank) is not None or (
        any("backward" in one for one in called) and not any("step" in name for one in called for name in one)
    )


def _stands(case: Case, rank: Member, seen: Profile) -> bool:
    """True if the training thread does not even come back from its wait now and then, or no step is made of what it gets."""
    now = case.progress[rank.pid]
    passes = seen.seen("backward", "optimizer", "forward")
    overdue = now.steps is not None and now.steps.is_overdue(LATE_SECONDS, LATE_STEPS)
    if overdue and (now.kind == "still" or not passes):
        return True
    if now.kind != "still" or passes:
        return False
    if moves(case.history, rank.pid, now.thread).recurrent:
        return False  # rounds of a quarter of a minute: it sleeps between two of them, and was woken each time
    return motion(case.history, rank.pid, now.thread).frozen is not False


def _working_share(case: Case, makers: tuple[tuple[int, int], ...]) -> float:
    """Share of the looks at workers in which they work at data; 0 where they were not looked at."""
    seen = [lasting(case.history, pid, tid, LATELY_SECONDS) for pid, tid in makers]
    looks = sum(one.samples for one in seen)
    return sum(one.share_where(works) * one.samples for one in seen) / looks if looks else 0.0


def _enough(case: Case, waiting: float, makers: tuple[tuple[int, int], ...]) -> bool:
    """True if so much waiting is the workers' doing: those that mostly wait for work have their batches ready in time."""
    share = _working_share(case, makers)
    if share < WORKING_SHARE:
        return False
    return waiting >= (BOTTLENECK_SHARE if share >= NEARLY_ALL else WAITING_SHARE)


def _never_idle(case: Case, rank: Member, makers: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The DataLoader workers that always work, while the others rest: a loader hands out batches in turn, and waits for theirs."""
    workers = {worker.pid for worker in case.job.workers(rank.pid)}
    seen = {key: lasting(case.history, *key, LATELY_SECONDS) for key in makers if key[0] in workers}
    return tuple(
        key for key, looks in seen.items() if looks.samples >= ENOUGH_SAMPLES and looks.share_where(works) >= NEARLY_ALL
    )


def _waits_for_ranks(seen: Profile) -> bool:
    """True if a rank is nearly always where others are waited for, and not short of data itself."""
    return seen.share("collective", "backward") >= NEARLY_ALL and seen.share_where(awaits_data) < WAITING_SHARE


def _after_start(case: Case, seen: Profile, makers: tuple[tuple[int, int], ...]) -> Profile:
    """The samples since the last worker was done with its imports: the first batch of new workers is always late."""
    ready = max(
        (one.at for key in makers for one in case.history.series(r.Stack, *key) if imports(one.reading)), default=0.0
    )
    return Profile(tuple(one for one in seen.sights if one.at > ready), seen.seconds)


FEW_LOCKED_SAMPLES = 4  # of workers that find it locked by another one


@dataclass(frozen=True)
class Turns:
    """``waiting``: how many of the workers found it locked by another one; ``holders``: processes that held it meanwhile."""

    lock: str
    sightings: int
    waiting: int
    holders: tuple[int, ...]
    next: str


def turns(case: Case, found: Starving) -> Turns | None:
    """The lock that the workers of a rank were seen to take in turn; None where there is none."""
    return at_lock(case, found) or case.history.once(("turns at a file",), lambda: _at_file(case, found))


def at_lock(case: Case, found: Starving) -> Turns | None:
    """A lock between processes, at one line of the program's."""
    return case.history.once(("turns at a lock",), lambda: _at_lock(case, found))


def _at_lock(case: Case, found: Starving) -> Turns | None:
    seen = {pid: busy for pid, tid, busy in found.profiles(case) if pid == tid}
    waits = {pid: busy.share_where(_waits_for_lock) * busy.samples for pid, busy in seen.items()}
    both = tuple(sorted(pid for pid, busy in seen.items() if 0 < waits[pid] < busy.samples))
    looks = sum(busy.samples for busy in seen.values())
    if len(both) < TWICE or sum(waits.values()) < max(FEW_LOCKED_SAMPLES, MUCH * looks):
        return None
    line = show(seen[max(waits, key=lambda pid: waits[pid])].top_line(_waits_for_lock))
    return Turns(
        f"the lock between processes at {line}",
        round(sum(waits.values())),
        len(both),
        both,
        f"do the slow part outside of the lock at {line}: more workers make it no faster",
    )


def _waits_for_lock(stack: Stack) -> bool:
    inner = inner_tags(stack)
    if "mp_lock" not in inner or any_tag(inner, "mp_queue_get", "mp_queue_put"):
        return False
    return stack.frames[0].function.rpartition(".")[2] in ("__enter__", "acquire")


def _at_file(case: Case, found: Starving) -> Turns | None:
    pids = {pid for pid, _ in found.producers}
    seen: dict[str, list[Descriptor]] = {}
    for pid in pids:
        for key in case.history.of(Descriptor, pid):
            for one in case.history.series(Descriptor, *key, seconds=LATELY_SECONDS):
                if pids.intersection(one.reading.lock_holders) - {pid}:
                    seen.setdefault(one.reading.target, []).append(one.reading)
    if not seen:
        return None
    path, looks = max(seen.items(), key=lambda item: len(item[1]))
    holders = tuple(sorted(pids.intersection(pid for one in looks for pid in one.lock_holders)))
    waiting = len({one.pid for one in looks})
    if len(looks) < FEW_LOCKED_SAMPLES or len(holders) < TWICE or 2 * waiting <= len(pids):
        return None
    advice = "lock for as long as it takes to write, and read before: more workers make it no faster"
    return Turns(f"a lock on {path}", len(looks), waiting, holders, advice)


def hands_on(case: Case, found: Starving) -> bool:
    """True if most of a rank's waits are at lines that drop what they get, or only fill it and hand it on."""
    waits = [one for one in found.profile.sights if awaits_data(one.reading) and "loader_wait" not in tags(one.reading)]
    frames = [(one.reading.samples, user_frame(one.reading)) for one in waits]
    lines = [(samples, line_of(case.history, frame)) for samples, frame in frames if frame is not None]
    unused = sum(samples for samples, line in lines if line is not None and line.result)
    return unused > MOSTLY * sum(samples for samples, _ in frames)
