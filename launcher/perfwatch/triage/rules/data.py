"""Training waits for data, or prepares its own."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from perfwatch.triage.cards.accelerated import since_first_step
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen, median, quantile
from perfwatch.triage.moving.memory import computed
from perfwatch.triage.moving.motion import motion, python_threads, tags_seen
from perfwatch.triage.moving.periods import is_apart, is_in, recurrent
from perfwatch.triage.moving.work import waited_on
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.cpu import spare_cores
from perfwatch.triage.shares.own_work import awaits_a_program, fetches, fetches_itself, own_python, takes_a_lock
from perfwatch.triage.shares.profile import Profile, in_own_sampler, lasting
from perfwatch.triage.shares.python import (
    NATIVE_SHARE,
    OWN_SHARE,
    does_other_work,
    keeps_gil,
    native_python_share,
    shown,
)
from perfwatch.triage.shares.starving import Starving, at_lock, awaits_data, hands_on, starving, turns
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    ENOUGH_SAMPLES,
    HIGH,
    LATELY_SECONDS,
    LOW,
    MEDIUM,
    MOSTLY,
    MUCH,
    NOTABLE,
    TWICE,
)
from perfwatch.triage.shares.thrown_away import unfollowed
from perfwatch.triage.shares.without_steps import STEPS, in_environment, in_rollout, makes_batches
from perfwatch.triage.slowness import certainty, in_samples, slow, working, worst
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.frames import any_tag, show, tags
from perfwatch.verdict import Alternative, Finding, Outcome
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Descriptor, Frame, Process, ProcessEnded, Stack, Thread

STARVED_BY_TRANSFORMS = Cause("starved_by_transforms", "slow", "data", (Thread, Stack))

SPARE_CORES = 0.25  # with less than that idle, more workers would take their time from those that are there


def starved_by_transforms(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers burn CPU, or wait for neither files nor sockets."""
    found = starving(case)
    if found is None:
        return None
    does = time_of_workers(case, found)
    served = server(case, found) if does.mostly in ("sockets", "waiting") else None
    if served is not None and served.computes:
        return by_server(case, STARVED_BY_TRANSFORMS, found, served)
    if does.mostly not in ("computing", "waiting"):
        return None
    computes = does.mostly == "computing"
    if _makes_experience(case, found) or (at_lock if computes else turns)(case, found) is not None:
        return None
    uneven = computes and 0 < does.computing < found.workers
    unused = hands_on(case, found)
    doubted = unused or unfollowed(case, found.rank)
    return found.finding(
        case,
        STARVED_BY_TRANSFORMS,
        ceiling=MEDIUM if not computes or doubted else CERTAIN,
        summary=found.summary(
            case, "computing" if computes else "waiting in the program's own code", does.computing if uneven else None
        ),
        evidence=(
            case.saw(
                "thread",
                found.kind,
                "compute" if computes else "neither compute nor read",
                f"{does.wants:.0%} of a core each",
                "idle between batches",
            ),
        ),
        alternatives=(
            Alternative(
                cause="starved_by_network" if does.sockets > does.files else "starved_by_storage",
                refuted_by=f"the workers read in {max(does.files, does.sockets):.0%} of looks and run {does.runs:.0%} of the time",
            ),
        ),
        next=(_advice(case, found, computes, uneven, unused),),
    )


def _advice(case: Case, found: Starving, computes: bool, uneven: bool, unused: bool) -> str:
    if not computes:
        line = found.line(case)
        return f"look at what they wait for{f' at {line}' if line else ''}: no more workers make that shorter"
    if uneven:
        return "give each worker as much to do as the others: one that has most of the work holds up the batches of all"
    if unused:
        return "make that cheaper, hand on less of it, or let more of it wait: no step uses what is waited for"
    spare = spare_cores(case, found.rank.pid)
    if spare is not None and spare < SPARE_CORES:
        return "make the transform cheaper, or do it ahead of training: no CPU is left for more workers"
    return "raise num_workers or make the transform cheaper"


def _makes_experience(case: Case, found: Starving) -> bool:
    """True if most of the waiting is for environments, which reinforcement learning steps in processes of their own.

    They work by turns: one that waits for its next action is as it should be.
    """
    steps = in_environment(case.history, found.profile)
    waits = found.profile.share_where(awaits_data)
    return found.profile.share_where(lambda stack: awaits_data(stack) and steps(stack)) > waits / 2


STARVED_BY_NETWORK = Cause("starved_by_network", "slow", "network", (Thread, Stack))

OF_REQUESTS = frozenset({"http", "ssl", "selector", "retry"})


def starved_by_network(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for sockets more than they compute."""
    found = starving(case)
    if found is None:
        return _asks_itself(case)
    does = time_of_workers(case, found)
    if does.mostly != "sockets":
        return None
    served = server(case, found)
    if served is not None and served.computes:
        return None
    by_name = any(
        seen.share("http", "ssl") for _, _, seen in found.profiles(case)
    )  # a client's code asks over a network
    peer = f" ({does.where})" if does.where else ""
    if served is not None:
        peer = f", for pid {served.node.pid} of the job, which waits itself{served.at}"
    return found.finding(
        case,
        STARVED_BY_NETWORK,
        ceiling=HIGH if served is not None else CERTAIN if does.where or by_name else MEDIUM,
        summary=found.summary(case, f"waiting for the network{peer}"),
        evidence=(
            case.saw(
                "thread",
                found.kind,
                "wait for sockets",
                f"in {does.sockets:.0%} of looks",
                "hardly ever",
            ),
        ),
        alternatives=(
            Alternative(cause="starved_by_transforms", refuted_by=f"the workers run only {does.runs:.0%} of the time"),
        ),
        next=("ss -tni", "raise num_workers, or cache the data near the job"),
    )


def _asks_itself(case: Case) -> Outcome:
    found = worst(case, lambda _, seen: seen.share_where(_asks))
    if found is None:
        return None
    rank, seen, lost = found
    if seen.turns(_asks) < TWICE or not seen.seen(*STEPS):
        return None
    frame = seen.top_line(_asks)
    return slow(
        case,
        STARVED_BY_NETWORK,
        rank,
        lost=lost,
        frame=frame,
        confidence=min(certainty(lost), HIGH),
        summary=f"the training thread asks over the network and waits for the answer {lost:.0%} of the time, at {show(frame)}",
        evidence=(in_samples(case, rank, seen, "is in HTTP", lost, "hardly ever"),),
        alternatives=(Alternative(cause="blocked_network", refuted_by="answers come, and steps go on"),),
        next=(f"ask at {show(frame)} for many steps at once, or in a thread beside training", "ss -tni"),
    )


def _asks(stack: Stack) -> bool:
    """True if a line of the program has asked by HTTP, for no other known kind of work."""
    return "http" in (found := tags(stack)) and found <= OF_REQUESTS


STARVED_BY_STORAGE = Cause("starved_by_storage", "slow", "storage", (Thread, Stack))


def starved_by_storage(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for files more than they compute."""
    found = starving(case)
    if found is None:
        return None
    does = time_of_workers(case, found)
    if does.mostly != "files":
        return None
    where = f" ({does.where})" if does.where else ""
    return found.finding(
        case,
        STARVED_BY_STORAGE,
        summary=found.summary(case, f"waiting for file reads{where}"),
        evidence=(
            case.saw(
                "thread",
                found.kind,
                "wait for files",
                f"in {does.files:.0%} of looks, {does.bytes_per_second / 2**20:.1f} MiB/s from disk",
                "hardly ever",
            ),
        ),
        alternatives=(
            Alternative(cause="starved_by_transforms", refuted_by=f"the workers run only {does.runs:.0%} of the time"),
        ),
        next=("iostat -x 1", "raise num_workers, or keep the data on a local disk"),
    )


BLOCK_READS = 256 * 1024  # bytes per second from the block layer: below it the page cache serves
HARD_READS = 256 * 2**20  # bytes per second: of so many, much of the run time is the kernel's, for the reads


@dataclass(frozen=True)
class WorkersTime:
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
        hard = self.bytes_per_second >= HARD_READS and self.files >= MOSTLY
        if hard or reads >= max(MUCH, self.runs):
            return "files" if self.files > self.sockets else "sockets"
        if not self.measured:
            return "unknown"
        return "computing" if self.wants >= MOSTLY else "waiting"


def time_of_workers(case: Case, found: Starving) -> WorkersTime:
    """What the workers of a starving rank do, from their counters, their blocked calls and their stacks."""
    runs, wants, looks, files, sockets, rate, running = [], [], 0, 0, 0, 0.0, False
    places: Counter[str] = Counter()
    for pid, tid in found.producers:
        moved = motion(case.history, pid, tid, LATELY_SECONDS)
        running = running or moved.state == "R"
        own = case.history.rate(r.Thread, pid, tid, of=lambda t: t.read_bytes, seconds=LATELY_SECONDS) or 0.0
        rate += own
        if moved.run_share is not None:
            computes = max(0.0, moved.run_share - (_system_share(case, pid, tid) if own > BLOCK_READS else 0.0))
            runs.append(computes)
            wants.append(computes + (moved.delay_share or 0.0))
        for seen in case.history.series(r.Thread, pid, tid, seconds=LATELY_SECONDS):
            looks += 1
            kind = _waits_on(case, seen.reading)
            files += kind == "file"
            sockets += kind == "socket"
        places.update(_sources(case, pid))
    in_files, in_sockets = (files / looks, sockets / looks) if looks else (0.0, 0.0)
    wanted = median(wants) or 0.0
    by_name = max((seen.share("http", "ssl") for _, _, seen in found.profiles(case)), default=0.0)
    in_sockets = max(in_sockets, min(by_name, 1.0 - wanted))  # running in a client's code is no wait for a server
    if rate > BLOCK_READS:
        in_files = max(in_files, 1.0 - in_sockets - wanted)
    where = places.most_common(1)[0][0] if places else ""
    computing = sum(one >= MOSTLY for one in wants)
    return WorkersTime(
        median(runs) or 0.0, wanted, in_files, in_sockets, rate, where, computing, bool(runs) or not running
    )


def _system_share(case: Case, pid: int, tid: int) -> float:
    """Share of a core that a thread spends in system calls; of one that reads from a disk, that is reading, not computing."""
    return case.history.rate(r.Thread, pid, tid, of=lambda t: t.system_seconds, seconds=LATELY_SECONDS) or 0.0


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


def _sources(case: Case, pid: int) -> Iterator[str]:
    for key in case.history.of(r.Descriptor, pid):
        seen = case.history.latest(r.Descriptor, *key)
        if seen is None:
            continue
        if seen.reading.kind == "file" and seen.reading.mount:
            yield f"{seen.reading.mount}, {seen.reading.filesystem}"
        elif seen.reading.socket is not None and seen.reading.socket.peer and seen.reading.socket.family != "unix":
            yield seen.reading.socket.peer


@dataclass(frozen=True)
class Server:
    """``node``: its busiest thread; ``line``: where that is mostly; ``wants``: a share of a core, waiting for it included."""

    node: Node
    line: str | None
    wants: float

    @property
    def at(self) -> str:
        """`` at LINE``, where that is known."""
        return f" at {self.line}" if self.line else ""

    @property
    def computes(self) -> bool:
        """True if it is behind because of what it computes."""
        return self.wants >= MOSTLY


def server(case: Case, found: Starving) -> Server | None:
    """The process of the job to which most connections lead that the makers of a rank's data wait on; None where it is no such one."""
    asked: Counter[int] = Counter()
    for pid, tid in found.producers:
        for fd in waited_on(case.history, pid, tid, LATELY_SECONDS):
            asked.update(_peers(case, pid, fd))
    makers = {pid for pid, _ in found.producers} | {rank.pid for rank in case.ranks}
    peer = next((pid for pid, _ in asked.most_common() if pid in case.job.members and pid not in makers), None)
    if peer is None or 2 * asked[peer] <= len(found.producers):
        return None
    tids = python_threads(case.history, peer) or [peer]
    shares = {tid: motion(case.history, peer, tid, LATELY_SECONDS).wanted_share for tid in tids}
    busiest = max(tids, key=lambda tid: shares[tid])
    node = node_of(case.history, case.job, peer, busiest)
    line = lasting(case.history, peer, busiest, LATELY_SECONDS).top_line()
    return Server(node, show(line or node.frame), shares[busiest])


def by_server(case: Case, cause: Cause, found: Starving, served: Server) -> Finding:
    """The workers wait for a server of the job that computes."""
    told = found.finding(
        case,
        cause,
        ceiling=CERTAIN,
        summary=found.summary(case, f"waiting for pid {served.node.pid} of the job, which computes{served.at}"),
        evidence=(case.saw("thread", f"pid {served.node.pid}", "computes", f"{served.wants:.0%} of a core", "rests"),),
        alternatives=(Alternative(cause="starved_by_network", refuted_by="who should answer computes meanwhile"),),
        next=(f"run more than one such server, or make it cheaper{served.at}: more workers wait for it all the same",),
    )
    return msgspec.structs.replace(told, culprits=(msgspec.structs.replace(culprit(served.node), frame=served.line),))


def _peers(case: Case, pid: int, fd: int) -> tuple[int, ...]:
    seen = case.history.latest(Descriptor, pid, fd)
    if seen is None:
        return ()
    return seen.reading.socket.peer_pids if seen.reading.socket is not None else seen.reading.writers


SERIAL_LOADING = Cause("serial_loading", "slow", "data", (Stack,))

RESIDUE = 0.5  # own work is what no other rule knows: one that explains half as much is the better answer
# What it does, why no other thread does it, where it stands, what helps.
FETCHES = (
    "prepares its own data", "no worker does it", "is inside the loader's fetch",
    "DataLoader(num_workers=4) moves this out of the training thread",
)  # fmt: skip
DRAWS = (
    "draws its batches", "a sampler runs in no worker", "is inside its loader's sampler",
    "draw many batches at once, ahead of the epoch, or make the sampler cheaper: workers do not help",
)  # fmt: skip


def serial_loading(case: Case) -> Outcome:
    """Fires when the training thread spends its time in the loader's fetch or sampler, or in Python of its own between steps."""
    found = worst(case, partial(makes_batches, case))
    if found is None:
        return _other_work(case)
    rank, seen, lost = found
    if seen.share_where(lambda stack: fetches(stack) and takes_a_lock(case.history, stack)) >= MOSTLY * lost:
        return None  # the lock holder keeps it from its data
    draws = seen.seen(*STEPS) and seen.share_where(in_own_sampler) >= MOSTLY * lost
    own = in_own_sampler if draws else fetches_itself
    frame = seen.top_line(own if seen.share_where(own) >= MOSTLY * lost else fetches)
    does, why, stands, advice = DRAWS if draws else FETCHES
    saw = in_samples(case, rank, seen, stands, lost, "hardly ever")
    return slow(
        case,
        SERIAL_LOADING,
        rank,
        lost=lost,
        frame=frame,
        confidence=min(certainty(lost), loading_ceiling(case, rank, lost)),
        summary=f"the training thread {does} {lost:.0%} of the time, mostly at {show(frame)}: {why}",
        evidence=(saw,),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="the training thread does it itself"),),
        next=(advice,),
    )


def _other_work(case: Case) -> Outcome:
    for rank, whole in working(case):
        seen = since_first_step(case, rank, whole)
        works = partial(_makes_no_experience, case, in_rollout(case.history, seen))
        python = seen.share_where(lambda stack: own_python(case.history, stack) or awaits_a_program(stack))
        native = native_python_share(case, rank)
        if (now := case.progress[rank.pid]).kind == "busy" and now.steps is not None:
            continue  # steps are late: one long phase is no part of each step
        kept = keeps_gil(whole, partial(does_other_work, case)) if native is None else native >= NATIVE_SHARE
        plain = python >= NOTABLE or kept
        frame = seen.top_line(works)
        apart = is_apart(case, rank, seen, phase := partial(_works_in, frame, works))
        lost = min(seen.share_where(works), recurrent(case, rank, seen, phase)[1] if apart else 1.0)
        if (
            seen.samples < ENOUGH_SAMPLES
            or lost < OWN_SHARE
            or not plain
            or not (seen.seen(*STEPS) or computed(case, rank))
        ):
            continue
        return slow(
            case,
            SERIAL_LOADING,
            rank,
            lost=lost,
            explains=RESIDUE * lost,
            frame=frame,
            confidence=HIGH if case.history.entities(r.SourceLine) else MEDIUM,
            summary=f"the training thread does other work than training {lost:.0%} of the time, mostly at {show(frame)}"
            + (", which comes between steps again and again" if apart else ": no worker does it"),
            evidence=shown(case, rank, seen, lost, native),
            alternatives=(Alternative(cause="starved_by_transforms", refuted_by="it waits for no worker"),),
            next=(
                f"do {show(frame)} less often, once ahead of training, or in a process of its own meanwhile"
                if apart
                else f"if {show(frame)} makes data, move it to DataLoader workers or ahead of training; if not, do it less often",
            ),
        )
    return None


def _makes_no_experience(case: Case, makes_experience: Callable[[Stack], bool], stack: Stack) -> bool:
    return does_other_work(case, stack) and not makes_experience(stack)


def _works_in(frame: Frame | None, works: Callable[[Stack], bool], stack: Stack) -> bool:
    return is_in(frame, stack) and works(stack)


SPARE_CORES_FOR_LOADING = 0.25  # with less than that idle, workers would take their time from training itself


def loading_ceiling(case: Case, rank: Member, lost: float) -> float:
    """Less where nothing is to be won (training on CPUs that are all taken, and loading is the lesser part), or where it sleeps."""
    spare = spare_cores(case, rank.pid) if not cards_of(case.history, rank.pid).uuids else None
    if spare is not None and spare < SPARE_CORES_FOR_LOADING and lost < MOSTLY:
        return LOW
    return MEDIUM if _sleeps_in_it(case, rank, lost) else 1.0


def _sleeps_in_it(case: Case, rank: Member, lost: float) -> bool:
    """True if most of it may be a wait for a lock holder: asleep in a futex without a timeout."""
    looks = case.history.series(Thread, rank.pid, case.progress[rank.pid].thread, seconds=LATELY_SECONDS)
    waits = [one.reading.wait for one in looks]
    asleep = sum(wait is not None and wait.kind == "futex" and wait.forever for wait in waits)
    return asleep >= MOSTLY * lost * len(looks) > 0


BURSTY_LOADING = Cause("bursty_loading", "slow", "data", (Stack,))

LONG_WAIT_SECONDS = 0.2
FEW_WAITS, MANY_WAITS = 3, 6
LONGER = 2.0  # times the steps that do not wait: it waited
STEPS_BETWEEN = 3.0  # turns of the loop for each long wait; two workers in lockstep are merely too slow


def bursty_loading(case: Case) -> Outcome:
    """Fires when long waits for data alternate with several steps without one."""
    found = starving(case)
    if not isinstance(found, Starving) or found.workers < 2:
        return None
    waits = found.profile.runs(lambda stack: "loader_wait" in tags(stack))
    long = [end - begin for begin, end in waits if _is_long(begin, end)]
    if len(long) < FEW_WAITS or sum(long) < MOSTLY * sum(end - begin for begin, end in waits):
        return None
    between = _steps_per_long_wait(case, found, waits)
    if between < STEPS_BETWEEN:
        return None
    return found.finding(
        case,
        BURSTY_LOADING,
        summary=f"batches come in bursts: {len(long)} waits of {median(long) or 0:.1f} s, "
        f"and {between:.0f} steps for each of them",
        evidence=(
            case.saw(
                "stack",
                f"pid {found.rank.pid}",
                "few long waits",
                f"{len(long)} waits of {median(long) or 0:.2f} s, {between:.1f} steps for each",
                "waits of equal length",
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="most steps do not wait at all"),),
        next=("raise prefetch_factor or num_workers",),
        ceiling=HIGH if len(long) < MANY_WAITS else CERTAIN,
    )


def _is_long(begin: float, end: float) -> bool:
    return end - begin >= LONG_WAIT_SECONDS


def _steps_per_long_wait(case: Case, found: Starving, waits: list[tuple[float, float]]) -> float:
    """Steps for each long wait, from the first of these to the last: what was before they began is no burst.

    Without an agent a lower bound: how often the thread came to its optimizer, but for the steps that waited for a short while.
    """
    steps = case.steps(found.rank, found.profile.seconds)
    if steps is None or not steps.intervals:
        long = [wait for wait in waits if _is_long(*wait)]
        since, until = long[0][1], long[-1][0]
        sights = tuple(one for one in found.profile.sights if since <= one.at <= until)
        made = Profile(sights, until - since).turns(lambda stack: "optimizer" in tags(stack))
        short = sum(since <= begin < until and not _is_long(begin, end) for begin, end in waits)
        return (made - short) / (len(long) - 1)
    least = LONGER * (quantile(steps.intervals, 0.25) or 0.0)
    late = [index for index, interval in enumerate(steps.intervals) if interval >= least]
    return (late[-1] - late[0]) / (len(late) - 1) if len(late) >= FEW_WAITS else 0.0


WORKER_RESPAWN = Cause("worker_respawn", "slow", "data", (Process, Stack))

CHANGING = frozenset({"loader_start", "loader_stop"})
# Workers that are spawned are started at once and awaited long.
WAITING = CHANGING | {"loader_wait"}
# One that was forked takes its first task within hundredths of a second; one that imports the program is seen at it.
STARTS_SECONDS = 0.5


def worker_respawn(case: Case) -> Outcome:
    """Fires when generations of workers come and go while the rank works."""
    for rank, seen in working(case):
        since = case.at - max(LATELY_SECONDS, seen.seconds)
        workers = [
            child
            for child in case.job.children(rank.pid)
            if _is_worker(case, child) and _ended_at(case, child) >= since
        ]
        gone = [worker for worker in workers if not worker.alive]
        alive = [worker for worker in workers if worker.alive]
        size = max(1, len(alive))
        if len(gone) < size or not workers or len(workers) < TWICE * size:
            continue
        starts = [_starting(case, worker) for worker in workers]
        changing = sum(one.reading.samples for one in seen.sights if _changes_workers(one, starts))
        lost = changing / seen.samples
        if lost < NOTABLE:
            continue
        frame = seen.top_line(lambda stack: not tags(stack).isdisjoint(WAITING))
        return slow(
            case,
            WORKER_RESPAWN,
            rank,
            lost=lost,
            frame=frame,
            confidence=max(HIGH, certainty(lost)),
            summary=f"the DataLoader starts its workers again and again: {len(workers)} worker processes came by, {len(gone)} are gone"
            + (f" (at {show(frame)})" if frame else ""),
            evidence=(
                case.saw(
                    "process",
                    f"pid {rank.pid}",
                    "new worker pids",
                    f"{len(workers)} workers seen, {len(alive)} alive",
                    "the same pids all the time",
                ),
                in_samples(case, rank, seen, "starts or awaits workers", lost, "once per run"),
            ),
            alternatives=(Alternative(cause="dead_worker", refuted_by="steps go on after each change"),),
            next=("DataLoader(persistent_workers=True), made once, before the first epoch",),
        )
    return None


def _ended_at(case: Case, child: Member) -> float:
    """When a child ended; now, while it lives."""
    gone = case.history.latest(ProcessEnded, child.pid)
    return case.at if child.alive or gone is None else gone.at


def _starting(case: Case, worker: Member) -> tuple[float, float]:
    """From when to when a worker came up: a moment, or until it was last seen to import."""
    first = case.history.series(Process, worker.pid)[0]
    born = first.at - (first.reading.age_seconds or 0.0)
    sights = [one for one in case.history.series(Stack, worker.pid, worker.pid) if one.at > born]
    return born, max((one.at for one in sights if "import" in tags(one.reading)), default=born) + STARTS_SECONDS


def _changes_workers(one: Seen[Stack], starts: list[tuple[float, float]]) -> bool:
    """True if the training thread starts or joins workers, or waits for such as come up: those at work make it wait otherwise.

    A sampler of the program's own draws the first batches below the start: that is its time.
    """
    found = tags(one.reading)
    if in_own_sampler(one.reading):
        return False
    middle = one.at - one.reading.span_seconds / 2
    return any_tag(found, *CHANGING) or ("loader_wait" in found and any(a <= middle <= b for a, b in starts))


def _is_worker(case: Case, child: Member) -> bool:
    """True if a child is or was a loader's worker; one that was spawned a moment ago still imports the program."""
    if child.role == "worker":
        return True
    found = tags_seen(case.history, child.pid, child.pid)
    return "worker" in found or (child.role == "child" and child.alive and found == {"import"})


RULES = (
    Rule(STARVED_BY_TRANSFORMS, starved_by_transforms),
    Rule(STARVED_BY_NETWORK, starved_by_network),
    Rule(STARVED_BY_STORAGE, starved_by_storage),
    Rule(SERIAL_LOADING, serial_loading),
    Rule(BURSTY_LOADING, bursty_loading),
    Rule(WORKER_RESPAWN, worker_respawn),
)
