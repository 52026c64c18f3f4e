"""Training that waits for data: how much of the time, who makes the data, and batches that are taken and dropped.

From outside a loop that throws each batch away looks like slow loading, for the training thread waits for data nearly all of the time.
What tells them apart: so many batches were taken that the steps which they should have led to would have been seen, or counted.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from perfwatch.triage.cards.gpu import Regime, regimes, saturated
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.motion import motion, moves, python_threads, tags_seen, was_at
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import Member
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
from perfwatch.triage.shares.training import FEW_STEPS, made_steps, steps_an_optimizer
from perfwatch.triage.shares.without_steps import gathers
from perfwatch.triage.slowness import LOST_SHARE, Line, asleep_share
from perfwatch.triage.waits.actors import serving
from perfwatch.triage.waits.workers import between_tasks
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, inner_tags, inside, is_user, show, tags, user_frame, user_frames
from perfwatch.verdict import Culprit, Evidence, Finding
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Descriptor, Stack

WORKING_SHARE = 0.4  # of the looks at workers: those of a starved loop are busy nearly all the time
SERVICES = ("feeder", "pool_service", "futures_service", "monitor", "serve", "compile_worker")


def works(stack: r.Stack) -> bool:
    """True if a worker works at data, rather than waits for its next task, for an item, or for room in a queue."""
    found = tags(stack)
    if "fetch" in found:
        return True
    if "feeder" in found:  # it pickles a batch, or has none to pickle
        return not any_tag(found, "thread_wait", "mp_send", "mp_lock")
    asks = any_tag(found, "mp_queue_get", "queue_get", "mp_lock")
    idle = asks and any_tag(found, "worker", "pool_worker", "futures_worker", "thread_wait")
    # A selector of a library's own; the program's may await its data.
    loops = "selector" in found and not any(map(is_user, stack.frames))
    waits = any_tag(inner_tags(stack), "thread_wait", "between_calls") or between_tasks(stack) or _awaits_orders(stack)
    return not (idle or waits or loops or imports(stack))


def _awaits_orders(stack: r.Stack) -> bool:
    """True if the function that a process was started with asks for the next item itself, rather than one that serves an item."""
    if not any_tag(inner_tags(stack), "mp_receive"):
        return False
    callers = zip(stack.frames, stack.frames[1:], strict=False)
    caller = next((outer for frame, outer in callers if is_user(frame)), None)
    return caller is not None and caller.file.endswith("multiprocessing/process.py")


def imports(stack: r.Stack) -> bool:
    """True if a worker that was spawned a moment ago still imports the program."""
    found = tags(stack)
    return "import" in found and not any_tag(found, "worker", "pool_worker")


def producers(case: Case, rank: Member) -> tuple[tuple[int, int], ...]:
    """Who makes the data of a rank: loader workers, else tasks of Ray, its other Python processes or threads, by what it waits on."""
    workers = [w.pid for w in case.job.workers(rank.pid) if w.alive]
    if workers:
        return tuple((pid, pid) for pid in workers) + _pickling(case, workers)
    seen = case.profile(rank, LATELY_SECONDS)
    if seen.seen("remote_data"):  # a process of Ray's pool gets another task each time
        return _at_work(case, ((pid, pid) for pid in serving(case.job)))
    children = tuple(
        (m.pid, m.pid)
        for m in case.job.children(rank.pid)
        if m.alive and m.process.python and m.role in ("pool_worker", "child")
    )
    trains = case.progress[rank.pid].thread
    threads = tuple(
        (rank.pid, tid)
        for tid in python_threads(case.history, rank.pid)
        if tid != trains and not any_tag(tags_seen(case.history, rank.pid, tid, LATELY_SECONDS), *SERVICES)
    )
    threads = _at_work(case, threads) or threads  # a writer of logs waits for items, too
    between = seen.share("mp_queue_get", "mp_receive", "pool_wait") > 0.0
    return (children or threads) if between else (threads or children)


def _at_work(case: Case, makers: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(
        key for key in makers if lasting(case.history, *key, LATELY_SECONDS).share_where(works) >= WORKING_SHARE
    )


def _pickling(case: Case, workers: list[int]) -> tuple[tuple[int, int], ...]:
    """Feeder threads of workers that spend their time on turning batches into bytes; they rarely do."""
    return _at_work(
        case,
        (
            (pid, tid)
            for pid in workers
            for tid in python_threads(case.history, pid)
            if tid != pid and "feeder" in tags_seen(case.history, pid, tid, LATELY_SECONDS)
        ),
    )


WAITING_SHARE = MUCH  # of the training thread's time; healthy loops with prefetch stay below 0.05
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

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.producers)

    @property
    def kind(self) -> str:
        """What they are, in words."""
        own = any(pid == self.rank.pid for pid, _ in self.producers)
        return f"{self.workers} {'thread' if own else 'worker'}{'' if self.workers == 1 else 's'}"

    def profiles(self, case: Case) -> list[tuple[int, int, Profile]]:
        """(pid, tid, samples) of each while it works at data, the one with most first."""
        seen = ((*key, lasting(case.history, *key, LATELY_SECONDS).where(works)) for key in self.producers)
        return sorted((one for one in seen if one[2].samples), key=lambda one: -one[2].samples)

    def line(self, case: Case) -> str | None:
        """The program's own line where the workers spend most of their time."""
        sights = (one for _, _, seen in self.profiles(case) for one in seen.sights)
        return show(Profile(tuple(sights), 0.0).top_line())

    def finding(
        self,
        case: Case,
        line: Line,
        doing: str = "",
        of_them: int | None = None,
        /,
        *,
        ceiling: float = CERTAIN,
        **facts: Any,
    ) -> Finding:
        """A slow finding. ``doing`` completes: the training thread waits for data so much of the time while 4 workers are ...

        of_them: how many do so, where it is not all.
        """
        alone, at = (self.workers if of_them is None else of_them) == 1, self.line(case)
        who = self.kind if of_them in (None, self.workers) else f"{of_them} of {self.kind}"
        told = f"the training thread waits for data {self.waiting:.0%} of the time while {who} {'is' if alone else 'are'} {doing}"
        cards = [c for c in regimes(case.history, self.rank.pid, LATELY_SECONDS)[:1] if c.waiting >= MUCH]
        share = f"{self.waiting:.0%} of {self.profile.samples} samples"
        waits = case.saw("stack", f"pid {self.rank.pid}", "the training thread waits for data", share, "below 5 %")
        found = line.finding(
            case,
            tuple(self._culprit(pid, tid, show(seen.top_line())) for pid, tid, seen in self.profiles(case)),
            min(ceiling, self._ceiling(case), self._confidence(bool(cards))),
            before=(waits,),
            more=tuple(_idles(case, card) for card in cards),
            kind=self.kind,
            waits=told + (f", mostly at {at}" if at else ""),
            **{"pid": self.rank.pid, **facts},
        )
        return msgspec.structs.replace(found, lost_share=round(self.waiting, 3))

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


UPDATES = ("backward", "optimizer", "scaler")
PASSES = ("forward", *UPDATES)
ELSEWHERE = ("save", "import", "compile", "exit", "collective", "rendezvous", "loader_start", "loader_stop")
STEP_SECONDS = 0.001  # forward, backward and update of the smallest model; measured 0.8 ms for two layers of 64
CAUTION = 0.5  # of the time that the passes for a batch were seen to take: batches are counted by wake-ups, and there are more of these
FEW_PASSES = 5  # samples, that tell how long they take
DUE_SAMPLES, DUE_AFTER_STEPS = 3.0, 8.0  # of steps that last no longer than that: none is seen by chance with e**-3


@dataclass(frozen=True)
class Discarded:
    """The batches since the last step."""

    batches: int  # about
    seconds: float
    line: r.Frame  # of the loop: where it discards them, if it was met there
    seen: Profile
    due: float  # samples of steps, had these been made
    sure: float  # that none is made any more; 0: not yet


def discarded(case: Case, rank: Member) -> Discarded | None:
    """What a rank has taken from its loader since its last step, if so much of it led to no step that none is made any more."""
    found = _taken(case, rank)
    return found if found is not None and found.sure else None


def _taken(case: Case, rank: Member) -> Discarded | None:
    return case.history.once(("thrown away", rank.pid), lambda: _find_taken(case, rank))


def _find_taken(case: Case, rank: Member) -> Discarded | None:
    steps, ever = case.steps(rank), case.profile(rank).sights
    counted = steps is not None and steps.ago_seconds is not None and steps.count >= FEW_STEPS
    if counted and steps is not None and (steps.ago_seconds or 0.0) < temporal(case):
        return None
    last = max((n for n, one in enumerate(ever) if any_tag(tags(one.reading), *PASSES)), default=-1)
    since = Profile(ever[last + 1 :], 0.0)
    if not since.sights or since.share_where(awaits_data) < MOSTLY:
        return None
    began = since.sights[0].at - since.sights[0].reading.span_seconds
    seconds = (steps.ago_seconds or 0.0) if counted and steps is not None else case.at - began
    loop = _loop(since)
    if loop is None or any(any_tag(tags(one.reading), "import", "compile") for one in since.sights):
        return None
    batches = _ordered(case, rank, began, case.at)
    each = max(STEP_SECONDS, CAUTION * _passes_seconds(case, rank, ever[: last + 1]))
    due = each * batches * since.samples / max(case.at - began, STEP_SECONDS)
    before = made_steps(case, rank, loop)
    before = any(_within(one, loop) for one in ever[: last + 1]) if before is None else before
    sure = 0.0
    if counted and before:
        sure = CERTAIN if batches >= ENOUGH_SAMPLES else 0.0
    elif before:
        sure = HIGH if seconds >= temporal(case) and due >= DUE_AFTER_STEPS else 0.0
    elif steps_an_optimizer(line_of(case.history, loop)):
        sure = MEDIUM if due >= DUE_SAMPLES else 0.0
    return Discarded(batches, seconds, _discards_at(since, loop) or loop, since, due, sure)


def _loop(since: Profile) -> r.Frame | None:
    """The program's own line at which data is mostly waited for."""
    lines: Counter[r.Frame] = Counter()
    for one in since.sights:
        frames = user_frames(one.reading) if awaits_data(one.reading) else ()
        lines.update(dict.fromkeys(frames[:1], one.reading.samples))
    return lines.most_common(1)[0][0] if lines else None


def _within(one: Seen[r.Stack], loop: r.Frame) -> bool:
    """True if a stack in a pass that an update follows was called from the function of that loop."""
    if not any_tag(tags(one.reading), *UPDATES):
        return False
    return inside(loop, one.reading)


def _discards_at(since: Profile, loop: r.Frame) -> r.Frame | None:
    """Where the loop is met with a batch in its hands."""
    lines: Counter[r.Frame] = Counter()
    for one in since.sights:
        if any_tag(tags(one.reading), "loader", *ELSEWHERE) or awaits_data(one.reading):
            continue
        here = [
            frame for frame in user_frames(one.reading) if (frame.function, frame.file) == (loop.function, loop.file)
        ]
        lines.update(dict.fromkeys(here[:1], one.reading.samples))
    return lines.most_common(1)[0][0] if lines else None


def _passes_seconds(case: Case, rank: Member, before: Sequence[Seen[r.Stack]]) -> float:
    """How long the passes of a step took for each batch that was taken, while they were seen; 0 where that is not known.

    Where most batches were thrown away all along, and few trained on, that is little.
    """
    passes = [n for n, one in enumerate(before) if any_tag(tags(one.reading), *PASSES)]
    if len(passes) < FEW_PASSES:
        return 0.0
    seen = Profile(tuple(before[passes[0] : passes[-1] + 1]), 0.0)
    begin, end = seen.sights[0].at, seen.sights[-1].at
    batches = _ordered(case, rank, begin, end)
    return seen.share(*PASSES) * (end - begin) / batches if batches >= ENOUGH_SAMPLES else 0.0


def _ordered(case: Case, rank: Member, begin: float, end: float) -> int:
    """About how many batches were ordered: for each that is taken a thread that feeds a worker's queue wakes up once."""
    woken = 0
    for tid in python_threads(case.history, rank.pid):
        if "feeder" in tags_seen(case.history, rank.pid, tid):
            looks = [one.reading for one in case.history.series(r.Thread, rank.pid, tid) if begin <= one.at <= end]
            counts = [one.voluntary_switches for one in looks if one.voluntary_switches is not None]
            woken += counts[-1] - counts[0] if counts else 0
    return woken
