"""Training that waits for data: how much of the time, who makes the data, and batches that are taken and dropped.

From outside a loop that throws each batch away looks like slow loading, for the training thread waits for data nearly all of the time.
What tells them apart: so many batches were taken that the steps which they should have led to would have been seen, or counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from perfwatch.triage.cards.gpu import regimes, saturated
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import once
from perfwatch.triage.moving.memory import since_training
from perfwatch.triage.moving.motion import motion, python_threads, tags_seen
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Facts, Line, Saw
from perfwatch.triage.shares.budget import WORK, Bin, awaits_data, kernel_waits, worker_bin, worker_budget
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    LARGE,
    LASTS,
    LATELY_SECONDS,
    LOST_SHARE,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    NOTABLE,
    SEVERAL_TIMES,
    TWICE,
)
from perfwatch.triage.shares.training import FEW_STEPS, gathers, made_steps, steps_an_optimizer
from perfwatch.triage.slowness import slow
from perfwatch.triage.waits.libraries import serving
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, inside, show, tags, user_frame, user_frames
from perfwatch.verdict import Culprit, Finding, Level
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Descriptor, Stack

SERVICES = ("feeder", "pool_service", "futures_service", "monitor", "serve", "compile_worker")


Makers = tuple[tuple[int, int], ...]  # (pid, tid) of each thread


def producers(case: Case, rank: Member) -> Makers:
    """Who makes the data of a rank: loader workers, else tasks of Ray, its other Python processes or threads, by what it waits on."""
    workers = [w.pid for w in case.job.workers(rank.pid) if w.alive]
    if workers:  # and their feeder threads, which rarely spend their time on turning batches into bytes
        threads = ((pid, tid) for pid in workers for tid in python_threads(case.history, pid) if tid != pid)
        feeders = (key for key in threads if "feeder" in tags_seen(case.history, *key, LATELY_SECONDS))
        return (*((pid, pid) for pid in workers), *_at_work(case, feeders))
    seen = case.profile(rank, LATELY_SECONDS)
    if seen.seen("remote_data"):  # a process of Ray's pool gets another task each time
        return _at_work(case, ((pid, pid) for pid in serving(case.job)))
    of_python = [m for m in case.job.children(rank.pid) if m.alive and m.process.python]
    children = tuple((m.pid, m.pid) for m in of_python if m.role in ("pool_worker", "child"))
    tids = case.beside(rank)
    own = [tid for tid in tids if not any_tag(tags_seen(case.history, rank.pid, tid, LATELY_SECONDS), *SERVICES)]
    beside = tuple((rank.pid, tid) for tid in own)
    beside = _at_work(case, beside) or beside  # a writer of logs waits for items, too
    between = seen.share("mp_queue_get", "mp_receive", "pool_wait") > 0.0
    return (children or beside) if between else (beside or children)


def _at_work(case: Case, makers: Iterable[tuple[int, int]]) -> Makers:
    return tuple(key for key in makers if worker_budget(case, *key).share(*WORK) >= LARGE)


WAITING_SHARE = MUCH  # of the training thread's time; healthy loops with prefetch stay below 0.05
LATE_SECONDS, LATE_STEPS = 3.0, 3.0  # the last step was so long ago at most, or so many times the longest: they go on
PHASE_SECONDS = 12.0  # of waits in a loop that makes no step, and nothing else: no step is that long for its data
STEP_TAGS = frozenset({"backward", "optimizer"})
STEP_CALLS = frozenset({"backward", "zero_grad"})


WAITS = Saw(
    "stack",
    "the training thread waits for data",
    "{found.waiting:.0%} of {found.profile.samples} samples",
    "below 5 %",
    "pid {found.rank.pid}",
)
CARD_WAITS = Saw(
    "{card.source}",
    "the GPU waits too",
    "nothing to do {card.waiting:.0%} of the time ({shown})",
    "a kernel resident all the time",
    "{name}",
    share="card",
)


@dataclass(frozen=True)
class Starving:
    """A rank whose training thread waits for data."""

    rank: Member
    waiting: float  # share of its time
    profile: Profile
    producers: Makers
    asked: Profile | None = None  # the samples where it waits for answers, if it asks for its data itself

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
        if self.asked is not None:
            return [(*key, self.asked) for key in self.producers]
        seen = ((*key, worker_budget(case, *key).of(*WORK)) for key in self.producers)
        return sorted((one for one in seen if one[2].samples), key=lambda one: -one[2].samples)

    def line(self, case: Case) -> str | None:
        """The program's own line where the workers spend most of their time."""
        sights = (one for _, _, seen in self.profiles(case) for one in seen.sights)
        return show(Profile(tuple(sights), 0.0).top_line())

    def finding(
        self,
        case: Case,
        line: Line,
        of_them: int | None = None,
        /,
        *,
        ceiling: float = Level.CERTAIN,
        **facts: Any,
    ) -> Finding:
        """A slow finding. ``{waits}`` begins its sentence: the training thread waits for data so much of the time while 4 workers are

        of_them: how many do so, where it is not all.
        """
        alone = (self.workers if of_them is None else of_them) == 1
        who = self.kind if of_them in (None, self.workers) else f"{of_them} of {self.kind}"
        told = (
            f"the training thread waits for data {self.waiting:.0%} of the time while {who} {'is' if alone else 'are'}"
        )
        if self.asked is not None:
            told = f"the training thread asks for its data itself {self.waiting:.0%} of the time, and is"
        rank = self.rank
        card = next((c for c in regimes(case.history, rank.pid, LATELY_SECONDS)[:1] if c.waiting >= MUCH), None)
        known = Facts(found=self, card=card, kind=self.kind, waits=told, line=self.line(case), pid=rank.pid)
        if card is not None:
            known |= Facts(name=name_of(case.history, card.uuid), shown=card.shown())
        blamed = partial(Culprit, pid=rank.pid, rank=rank.rank)
        culprits = tuple(
            blamed(worker_pid=pid if pid != rank.pid else None, tid=tid, frame=show(seen.top_line()))
            for pid, tid, seen in self.profiles(case)
        )
        sure = min(ceiling, self._ceiling(case), self._confidence(card is not None))
        line = replace(line, saw=(WAITS, *line.saw, CARD_WAITS))
        known |= Facts(culprits=culprits, confidence=sure, decides_in_seconds=self._decides_in(case))
        return slow(case, line, rank, self.waiting, **{**known, **facts})

    def _decides_in(self, case: Case) -> float:
        """Seconds until what a training thread asks for, without a step that was seen, is more than a pause between two."""
        if self.asked is None or self._makes_steps(case):
            return 0.0
        return max(0.0, LASTS * temporal(case) - since_training(case, self.rank))

    def _makes_steps(self, case: Case) -> bool:
        steps = case.progress[self.rank.pid].steps
        return (steps is not None and steps.ago_seconds is not None) or self.profile.seen(*STEP_TAGS)

    def _confidence(self, card_waits: bool) -> float:
        """From the share of time lost; a card that has nothing to do meanwhile is a second source."""
        if self.waiting >= (WAITING_SHARE if card_waits else LARGE):
            return Level.CERTAIN
        return Level.HIGH if self.waiting >= LOST_SHARE else Level.MEDIUM

    def _ceiling(self, case: Case) -> float:
        """While another rank was hardly looked at, or waits elsewhere, it may be waiting for this one, which is then a straggler.

        What a training thread asks for where no step was seen may be asked for once.
        """
        if self.asked is not None and not self._makes_steps(case):
            return Level.MEDIUM
        others = [case.profile(rank, LATELY_SECONDS) for rank in case.ranks if rank.pid != self.rank.pid]
        return Level.MEDIUM if any(one.samples < ENOUGH_SAMPLES or _waits_for_ranks(one) for one in others) else 1.0


def _waits_for_ranks(seen: Profile) -> bool:
    """True if a rank is nearly always where others are waited for, and not short of data itself."""
    return seen.share("collective", "backward") >= NEARLY_ALL and seen.share_where(awaits_data) < WAITING_SHARE


@once
def starving(case: Case) -> Starving | None:
    """The rank that waits for data most, if it waits more than a healthy one does."""
    return _starving(case) or _asks_itself(case)


def _asks_itself(case: Case) -> Starving | None:
    """A rank whose training thread asks for its data over a connection, and waits for each answer, in code of the program's own."""
    found = []
    for rank in case.ranks:
        waits = kernel_waits(case, rank, partial(at_a_connection, case))
        if waits is None or waits.share < WAITING_SHARE:
            continue
        if case.goes_on(rank) and _trains_around(case, rank, waits.seen):
            own = ((rank.pid, case.progress[rank.pid].thread),)
            found.append(Starving(rank, waits.share, case.profile(rank, LATELY_SECONDS), own, waits.seen))
    return max(found, key=lambda one: one.waiting, default=None)


def at_a_connection(case: Case, look: r.Thread) -> bool:
    """True if a thread waits for what comes in over a connection, or from another process through a pipe."""
    wait = look.wait
    if wait is None or wait.writes or wait.kind not in ("recv", "poll", "read"):
        return False
    fds = [wait.fd] if wait.fd is not None else [polled.fd for polled in wait.polled]
    files = (case.history.latest(Descriptor, look.pid, fd) for fd in fds)
    return any(_comes_from_others(case, file.reading) for file in files if file is not None)


def _comes_from_others(case: Case, file: Descriptor) -> bool:
    """True if who writes there is no rank and no launcher: what ranks send to each other is no data of theirs."""
    if file.socket is None:
        return file.kind in ("pipe", "fifo") and any(pid != file.pid for pid in file.writers)
    peers = [case.job.members[pid].role for pid in file.socket.peer_pids if pid in case.job.members]
    known = bool(file.socket.peer_pids) or case.job.covered  # another rank may be on another host
    return file.socket.state == "ESTABLISHED" and known and not {"rank", "launcher"}.intersection(peers)


def _trains_around(case: Case, rank: Member, seen: Profile) -> bool:
    """True if steps are made of the answers: they are counted, or seen, with waits between, or a loop around these makes them."""
    steps, whole = case.progress[rank.pid].steps, case.profile(rank, LATELY_SECONDS)
    if steps is not None and steps.ago_seconds is not None:
        return not steps.paused(seen.seconds) and not steps.is_overdue(LATE_SECONDS, LATE_STEPS)
    waits = {id(one.reading) for one in seen.sights}
    if whole.seen(*STEP_TAGS) and whole.turns(lambda stack: id(stack) in waits) >= TWICE:
        return True
    lines = (line_of(case.history, frame) for one in seen.sights[-1:] for frame in user_frames(one.reading))
    return any(steps_an_optimizer(line) for line in lines)


def _starving(case: Case) -> Starving | None:
    worst: Starving | None = None
    for rank in case.ranks:
        seen, share = case.profile(rank, LATELY_SECONDS), case.motion(rank, LATELY_SECONDS).asleep_share
        if seen.samples < ENOUGH_SAMPLES or _stands(case, rank, seen):
            continue
        # In ``Queue.get`` the thread waits at most for as long as it does not run, and unpickles otherwise.
        asleep = 1.0 if share is None else share
        waiting = min(seen.share_where(awaits_data), asleep)
        if waiting < max(NOTABLE, worst.waiting if worst is not None else 0.0):
            continue
        if saturated(case.history, rank.pid, LATELY_SECONDS) or for_training(case, rank, seen) is not True:
            continue
        makers = producers(case, rank)
        # The samples since the last worker was done with its imports: the first batch of new workers is always late.
        looks = (one for key in makers for one in case.history.series(Stack, *key))
        ready = max((one.at for one in looks if worker_bin(case, one.reading) is Bin.STARTING), default=0.0)
        seen = Profile(tuple(one for one in seen.sights if one.at > ready), seen.seconds)
        waiting = min(seen.share_where(awaits_data), asleep)
        if makers and seen.samples >= ENOUGH_SAMPLES and _enough(case, waiting, makers):
            worst = Starving(rank, waiting, seen, makers)
    return worst


def _enough(case: Case, waiting: float, makers: Makers) -> bool:
    """True if so much waiting is the workers' doing: those that mostly wait for work have their batches ready in time."""
    spent = [worker_budget(case, *key) for key in makers]
    share = sum(one.of(*WORK).samples for one in spent) / max(1, sum(one.seen.samples for one in spent))
    return share >= LARGE and waiting >= (NOTABLE if share >= NEARLY_ALL else WAITING_SHARE)


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
    steps_seen = case.was_at(rank, *STEP_TAGS)
    trains = steps_seen or any(names(line.loop_calls) & STEP_CALLS for _, line in around)
    loop = next((one for one in around if one[1].loops and not one[1].hands_out), None)
    if not trains or loop is None or names(loop[1].loop_calls) & STEP_CALLS:
        return trains
    if seen.share_where(partial(inside, loop[0])) < 1.0:
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
    if case.moves(rank).recurrent:
        return False  # rounds of a quarter of a minute: it sleeps between two of them, and was woken each time
    return motion(case.history, rank.pid, now.thread).frozen is not False


@dataclass(frozen=True)
class Turns:
    """A lock, how often workers found it locked by another one, the processes that held it meanwhile, and what to do."""

    lock: str
    sightings: int
    holders: tuple[int, ...]
    next: str


def turns(case: Case, found: Starving) -> Turns | None:
    """The lock that the workers of a rank were seen to take in turn; None where there is none."""
    return at_lock(case, found) or _at_file(case, found)


def at_lock(case: Case, found: Starving) -> Turns | None:
    """A lock between processes, at one line of the program's."""
    seen = {pid: busy for pid, tid, busy in found.profiles(case) if pid == tid}
    at_lock = {pid: busy.where(lambda stack: worker_bin(case, stack) is Bin.LOCK) for pid, busy in seen.items()}
    waits = {pid: one.samples for pid, one in at_lock.items()}
    both = tuple(sorted(pid for pid, busy in seen.items() if 0 < waits[pid] < busy.samples))
    looks, sightings = sum(busy.samples for busy in seen.values()), sum(waits.values())
    if len(both) < TWICE or sightings < max(SEVERAL_TIMES, MUCH * looks):
        return None
    line = show(at_lock[max(waits, key=lambda pid: waits[pid])].top_line())
    advice = f"do the slow part outside of the lock at {line}: more workers make it no faster"
    return Turns(f"the lock between processes at {line}", sightings, both, advice)


def _at_file(case: Case, found: Starving) -> Turns | None:
    pids = {pid for pid, _ in found.producers}
    seen: dict[str, list[Descriptor]] = {}
    for key in (key for pid in pids for key in case.history.of(Descriptor, pid)):
        for one in case.history.series(Descriptor, *key, seconds=LATELY_SECONDS):
            if pids.intersection(one.reading.lock_holders) - {one.reading.pid}:
                seen.setdefault(one.reading.target, []).append(one.reading)
    path, looks = max(seen.items(), key=lambda item: len(item[1]), default=("", []))
    holders = tuple(sorted(pids.intersection(pid for one in looks for pid in one.lock_holders)))
    if len(looks) < SEVERAL_TIMES or len(holders) < TWICE or 2 * len({one.pid for one in looks}) <= len(pids):
        return None
    advice = "lock for as long as it takes to write, and read before: more workers make it no faster"
    return Turns(f"a lock on {path}", len(looks), holders, advice)


def hands_on(case: Case, found: Starving) -> bool:
    """True if most of a rank's waits are at lines that drop what they get, or only fill it and hand it on."""
    waits = found.profile.where(lambda stack: awaits_data(stack) and "loader_wait" not in tags(stack))
    lines = waits.frames(user_frame).items()
    unused = sum(samples for frame, samples in lines if (line := line_of(case.history, frame)) and line.result)
    return unused > MOSTLY * waits.samples


UPDATES = ("backward", "optimizer", "scaler")
PASSES = ("forward", *UPDATES)
ELSEWHERE = ("save", "import", "compile", "exit", "collective", "rendezvous", "loader_start", "loader_stop")
STEP_SECONDS = 0.001  # forward, backward and update of the smallest model; measured 0.8 ms for two layers of 64
DUE_SAMPLES, DUE_AFTER_STEPS = 3.0, 8.0  # of steps that last no longer than that: none is seen by chance with e**-3


@dataclass(frozen=True)
class Discarded:
    """The batches since the last step."""

    batches: int  # about
    seconds: float
    line: r.Frame  # of the loop: where it discards them, if it was met there
    seen: Profile
    sure: float  # that none is made any more


@once
def discarded(case: Case, rank: Member) -> Discarded | None:
    """What a rank has taken from its loader since its last step, if so much of it led to no step that none is made any more."""
    steps, ever = case.steps(rank), case.profile(rank)
    ago = steps.ago_seconds if steps is not None and steps.count >= FEW_STEPS else None
    since = ever.after_last(_in_a_pass)
    loop = since.commonest(lambda stack: user_frame(stack) if awaits_data(stack) else None)
    if loop is None or (ago is not None and ago < temporal(case)) or since.share_where(awaits_data) < MOSTLY:
        return None
    if since.seen("import", "compile"):
        return None
    before = Profile(ever.sights[: len(ever.sights) - len(since.sights)], 0.0)
    began = since.sights[0].at - since.sights[0].reading.span_seconds
    seconds, batches = case.at - began if ago is None else ago, _ordered(case, rank, began, case.at)
    each = max(STEP_SECONDS, MOSTLY * _passes_seconds(case, rank, before))
    due = each * batches * since.samples / max(case.at - began, STEP_SECONDS)
    made = made_steps(case, rank, loop)
    # A pass that an update follows was called from the function of that loop.
    within = any(any_tag(tags(one.reading), *UPDATES) and inside(loop, one.reading) for one in before.sights)
    if within if made is None else made:
        long = batches >= ENOUGH_SAMPLES if ago is not None else seconds >= temporal(case) and due >= DUE_AFTER_STEPS
        sure = 0.0 if not long else Level.HIGH if ago is None else Level.CERTAIN
    else:
        sure = Level.MEDIUM if due >= DUE_SAMPLES and steps_an_optimizer(line_of(case.history, loop)) else 0.0
    at = since.commonest(partial(_has_a_batch, loop)) or loop
    return Discarded(batches, seconds, at, since, sure) if sure else None


def _in_a_pass(stack: Stack) -> bool:
    return any_tag(tags(stack), *PASSES)


def _has_a_batch(loop: r.Frame, stack: Stack) -> r.Frame | None:
    """The line of the loop's function, where the loop is met with a batch in its hands."""
    if any_tag(tags(stack), "loader", *ELSEWHERE) or awaits_data(stack):
        return None
    return next((one for one in user_frames(stack) if (one.function, one.file) == (loop.function, loop.file)), None)


def _passes_seconds(case: Case, rank: Member, before: Profile) -> float:
    """How long the passes of a step took for each batch that was taken, while they were seen; 0 where that is not known.

    Where most batches were thrown away all along, and few trained on, that is little.
    """
    passes = [n for n, one in enumerate(before.sights) if _in_a_pass(one.reading)]
    if len(passes) < SEVERAL_TIMES:
        return 0.0
    seen = Profile(before.sights[passes[0] : passes[-1] + 1], 0.0)
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
