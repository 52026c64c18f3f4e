"""Training waits for data, or prepares its own."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen, median, quantile
from perfwatch.triage.moving.memory import computed
from perfwatch.triage.moving.motion import motion, python_threads, tags_seen
from perfwatch.triage.moving.within import begins_anew
from perfwatch.triage.moving.work import waited_on
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule, Saw
from perfwatch.triage.rules.machine import spare_cores
from perfwatch.triage.shares.budget import (
    OWN_SHARE,
    Bin,
    at_file_lock,
    awaits_data,
    bin_of,
    budget,
    is_in,
    keeps_gil,
    native_python_share,
    since_first_step,
    worker_budget,
)
from perfwatch.triage.shares.data import Starving, at_a_connection, at_lock, hands_on, starving, turns
from perfwatch.triage.shares.own_work import awaits_a_program, own_python
from perfwatch.triage.shares.profile import Profile, in_own_sampler, lasting
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    FEW_TIMES,
    LATELY_SECONDS,
    MANY_TIMES,
    MOSTLY,
    MUCH,
    NOTABLE,
    OFTEN,
    TWICE,
)
from perfwatch.triage.shares.training import STEPS, in_environment, in_rollout, makes_batches
from perfwatch.triage.slowness import (
    RESIDUE,
    Part,
    certainty,
    is_apart,
    is_at,
    recurrent,
    sleeps_for_a_lock,
    slow,
    working,
    worst,
)
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.frames import any_tag, show, tags
from perfwatch.verdict import Finding, Level, Outcome
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Descriptor, Process, ProcessEnded, Stack, Thread

STARVED_BY_TRANSFORMS = Cause("starved_by_transforms", "slow", "data", (Thread, Stack))
STARVED_BY_NETWORK = Cause("starved_by_network", "slow", "network", (Thread, Stack))
STARVED_BY_STORAGE = Cause("starved_by_storage", "slow", "storage", (Thread, Stack))
SERIAL_LOADING = Cause("serial_loading", "slow", "data", (Stack,))
BURSTY_LOADING = Cause("bursty_loading", "slow", "data", (Stack,))
WORKER_RESPAWN = Cause("worker_respawn", "slow", "data", (Process, Stack))


COMPUTE = STARVED_BY_TRANSFORMS.line("""
    {waits} {doing}[, mostly at {line}]
    - saw thread of {kind}: {computing} | {does.wants:.0%} of a core each | idle between batches
    - not {rather}: the workers read in {reads:.0%} of samples and run {does.runs:.0%} of the time
    - next: {advice}
""")
BY_SERVER = STARVED_BY_TRANSFORMS.line("""
    {waits} waiting for pid {served.node.pid} of the job, which computes[ at {served.line}][, mostly at {line}]
    - saw thread of pid {served.node.pid}: computes | {served.wants:.0%} of a core | rests
    - not starved_by_network: the process that should answer computes
    - next: run several such servers, or make it cheaper[ at {served.line}]; more workers would only wait for it too
""")
READ_SOCKETS = STARVED_BY_NETWORK.line("""
    {waits} waiting for the network[ ({where})][, for pid {served.node.pid} of the job, which waits itself][ at {served.line}][, mostly
    at {line}]
    - saw thread of {kind}: wait for sockets | in {does.sockets:.0%} of samples | hardly ever
    - not starved_by_transforms: the workers run only {does.runs:.0%} of the time
    - next: ss -tni
    - next: raise num_workers, or cache the data near the job
""")
READ_FILES = STARVED_BY_STORAGE.line("""
    {waits} waiting for file reads[ ({does.where})][, mostly at {line}]
    - saw thread of {kind}: wait for files | in {does.files:.0%} of samples, {mib:.1f} MiB/s from disk | hardly ever
    - not starved_by_transforms: the workers run only {does.runs:.0%} of the time
    - next: iostat -x 1
    - next: raise num_workers, or keep the data on a local disk
""")


ASKS_SOCKETS = replace(
    READ_SOCKETS,
    saw=(Saw("thread", "waits for answers", "{does.sockets:.0%} of its waits are for sockets", "hardly ever"),),
    but=(("blocked_network", "answers come, again and again"),),
    next=("request many items at once at {line}, or in a background thread", "ss -tni"),
)


def starved_by_transforms(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers burn CPU, or wait for neither files nor sockets."""
    found = starving(case)
    if found is None:
        return None
    does = time_of_workers(case, found)
    served = server(case, found) if does.mostly in ("sockets", "waiting") else None
    if served is not None and served.computes:
        told = found.finding(case, BY_SERVER, served=served)
        blamed = msgspec.structs.replace(culprit(served.node), frame=served.line)
        return msgspec.structs.replace(told, culprits=(blamed,))
    if does.mostly not in ("computing", "waiting"):
        return None
    computes = does.mostly == "computing"
    if _makes_experience(case, found) or (at_lock if computes else turns)(case, found) is not None:
        return None
    uneven, unused = computes and 0 < does.computing < found.workers, hands_on(case, found)
    rather, reads = max(
        ("starved_by_storage", does.files), ("starved_by_network", does.sockets), key=lambda one: one[1]
    )
    facts = Facts(does=does, rather=rather, reads=reads, advice=_advice(case, found, computes, uneven, unused))
    facts |= Facts(doing="computing" if computes else "waiting in the program's own code")
    facts |= Facts(computing="compute" if computes else "neither compute nor read")
    ceiling = Level.MEDIUM if not computes or unused else Level.CERTAIN
    return found.finding(case, COMPUTE, does.computing if uneven else None, ceiling=ceiling, **facts)


def _advice(case: Case, found: Starving, computes: bool, uneven: bool, unused: bool) -> str:
    if not computes:
        line = found.line(case)
        return f"look at what they wait for{f' at {line}' if line else ''}: more workers would not shorten it"
    if uneven:
        return "balance the work between the workers: the slowest one delays every batch"
    if unused:
        return "make it cheaper, pass on less, or allow a longer queue: no step uses its result"
    spare = spare_cores(case, found.rank.pid)
    if spare is not None and spare < MUCH:
        return "make the transform cheaper, or precompute it: no CPU is free for more workers"
    return "raise num_workers or make the transform cheaper"


def _makes_experience(case: Case, found: Starving) -> bool:
    """True if most of the waiting is for environments, which work by turns: one that waits for its next action is as it should be."""
    steps, seen = in_environment(case.history, found.profile), found.profile.where(awaits_data)
    return seen.share_where(steps) > MOSTLY


def starved_by_network(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for sockets more than they compute."""
    found = starving(case)
    if found is None:
        return ASKS_ITSELF.judge(case)
    does = time_of_workers(case, found)
    if does.mostly != "sockets":
        return None
    served = server(case, found)
    if served is not None and served.computes:
        return None
    by_name = any(worker_budget(case, *key).share(Bin.NETWORK) for key in found.producers)  # a client's code asks
    ceiling = Level.HIGH if served is not None else Level.CERTAIN if does.where or by_name else Level.MEDIUM
    line = READ_SOCKETS if found.asked is None else ASKS_SOCKETS
    facts = Facts(does=does, served=served, where=does.where if served is None else None)
    return found.finding(case, line, ceiling=ceiling, **facts)


IN_HTTP = STARVED_BY_NETWORK.line("""
    the training thread waits for responses over the network {lost:.0%} of the time, at {at}
    - saw stack: is in HTTP | {lost:.0%} of {seen.samples} samples | hardly ever
    - not blocked_network: answers come, and steps continue
    - next: request what many steps need at once at {at}, or in a background thread
    - next: ss -tni
""")
ASKS_ITSELF = Part(
    IN_HTTP,
    (Bin.NETWORK,),
    given=lambda case, _, spent: spent.seen.turns(is_in(case, Bin.NETWORK)) >= TWICE and spent.seen.seen(*STEPS),
    ceiling=Level.HIGH,
)


def starved_by_storage(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for files more than they compute."""
    found = starving(case)
    does = time_of_workers(case, found) if found is not None else None
    if found is None or does is None or does.mostly != "files":
        return None
    return found.finding(case, READ_FILES, does=does, mib=does.bytes_per_second / 2**20)


# Bytes per second from the block layer: below it the page cache serves; of so many, much of the run time is the kernel's.
BLOCK_READS, HARD_READS = 256 * 1024, 256 * 2**20


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
    locks: float = 0.0  # for a lock that they take in turn

    @property
    def mostly(self) -> str:
        """``files``, ``sockets``, ``computing``, ``locks``, or ``waiting`` for something else; ``unknown`` before the second look."""
        reads = max(self.files, self.sockets)
        if self.locks > max(reads, self.wants):
            return "locks"
        hard = self.bytes_per_second >= HARD_READS and self.files >= MOSTLY
        if hard or reads >= max(MUCH, self.runs):
            return "files" if self.files > self.sockets else "sockets"
        if not self.measured:
            return "unknown"
        return "computing" if self.wants >= MOSTLY else "waiting"


def time_of_workers(case: Case, found: Starving) -> WorkersTime:
    """What the workers of a starving rank do, from their counters, their blocked calls and their stacks."""
    if found.asked is not None:
        return _time_of_asking(case, found)
    runs, wants, looks, rate, running = [], [], Counter[str](), 0.0, False
    places: Counter[str] = Counter()
    for pid, tid in found.producers:
        moved = motion(case.history, pid, tid, LATELY_SECONDS)
        running = running or moved.state == "R"
        own = case.history.rate(Thread, pid, tid, of=lambda t: t.read_bytes, seconds=LATELY_SECONDS) or 0.0
        system = case.history.rate(Thread, pid, tid, of=lambda t: t.system_seconds, seconds=LATELY_SECONDS) or 0.0
        rate += own
        if (
            moved.run_share is not None
        ):  # the system calls of a thread that reads from a disk are reading, not computing
            computes = max(0.0, moved.run_share - (system if own > BLOCK_READS else 0.0))
            runs.append(computes)
            wants.append(computes + (moved.delay_share or 0.0))
        looks.update(
            _waits_on(case, one.reading) for one in case.history.series(Thread, pid, tid, seconds=LATELY_SECONDS)
        )
        places.update(_sources(case, pid))
    in_files, in_sockets = (looks[kind] / max(1, looks.total()) for kind in ("file", "socket"))
    wanted = median(wants) or 0.0
    by_name = max((seen.share("http", "ssl") for _, _, seen in found.profiles(case)), default=0.0)
    in_sockets = max(in_sockets, min(by_name, 1.0 - wanted))  # running in a client's code is no wait for a server
    if rate > BLOCK_READS:
        in_files = max(in_files, 1.0 - in_sockets - wanted)
    where = places.most_common(1)[0][0] if places else ""
    computing, measured = sum(one >= MOSTLY for one in wants), bool(runs) or not running
    locks = looks["lock"] / max(1, looks.total()) if turns(case, found) is not None else 0.0
    return WorkersTime(median(runs) or 0.0, wanted, in_files, in_sockets, rate, where, computing, measured, locks)


def _time_of_asking(case: Case, found: Starving) -> WorkersTime:
    """What a training thread that asks for its data itself does where it does so: it waits, for a socket or for a pipe."""
    ((pid, tid),) = found.producers
    looks = [one.reading for one in case.history.series(Thread, pid, tid, seconds=LATELY_SECONDS)]
    waits = [one for one in looks if at_a_connection(case, one)]
    sockets = sum(_waits_on(case, one) == "socket" for one in waits) / max(1, len(waits))
    fds = {fd for one in waits if one.wait for fd in (one.wait.fd, *(polled.fd for polled in one.wait.polled))}
    files = [seen.reading for fd in fds if fd is not None and (seen := case.history.latest(Descriptor, pid, fd))]
    where = next((one.socket.peer for one in files if one.socket is not None and one.socket.family != "unix"), "")
    return WorkersTime(0.0, 0.0, 0.0, sockets, 0.0, where, 0, True)


def _waits_on(case: Case, thread: Thread) -> str:
    wait = thread.wait
    if thread.state == "D" or (wait is not None and wait.kind in ("page_fault", "sync", "stat")):
        return "file"
    if wait is None:
        return ""
    if wait.kind == "lock" or (wait.kind == "futex" and wait.shared):
        return "lock"
    if wait.kind in ("recv", "connect"):
        return "socket"
    for fd in [wait.fd] if wait.fd is not None else [polled.fd for polled in wait.polled]:
        seen = case.history.latest(Descriptor, thread.pid, fd)
        if seen is not None and seen.reading.kind in ("file", "socket"):
            inner = seen.reading.socket
            return "" if inner is not None and inner.family == "unix" else seen.reading.kind
    return ""


def _sources(case: Case, pid: int) -> Iterator[str]:
    for key in case.history.of(Descriptor, pid):
        seen = case.history.latest(Descriptor, *key)
        file = seen.reading if seen is not None else None
        if file is not None and file.kind == "file" and file.mount:
            yield f"{file.mount}, {file.filesystem}"
        elif file is not None and file.socket is not None and file.socket.peer and file.socket.family != "unix":
            yield file.socket.peer


@dataclass(frozen=True)
class Server:
    """``node``: its busiest thread; ``line``: where that is mostly; ``wants``: a share of a core, waiting for it included."""

    node: Node
    line: str | None
    wants: float

    @property
    def computes(self) -> bool:
        """True if it is behind because of what it computes."""
        return self.wants >= MOSTLY


def server(case: Case, found: Starving) -> Server | None:
    """The process of the job to which most connections lead that the makers of a rank's data wait on; None where it is no such one."""
    asked: Counter[int] = Counter()
    for pid, tid in found.producers:
        for fd in waited_on(case.history, pid, tid, LATELY_SECONDS):
            if (seen := case.history.latest(Descriptor, pid, fd)) is not None:
                file = seen.reading
                asked.update(file.socket.peer_pids if file.socket is not None else file.writers)
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


FETCHES = SERIAL_LOADING.line("""
    the training thread prepares its own data {lost:.0%} of the time, mostly at {at}: no worker does it
    - saw stack: is inside the loader's fetch | {lost:.0%} of {seen.samples} samples | hardly ever
    - not starved_by_transforms: the training thread does it itself
    - next: DataLoader(num_workers=4) moves this out of the training thread
""")
DRAWS = SERIAL_LOADING.line("""
    the training thread spends {lost:.0%} of its time in the sampler, mostly at {at}: workers do not run samplers
    - saw stack: is inside its loader's sampler | {lost:.0%} of {seen.samples} samples | hardly ever
    - not starved_by_transforms: the training thread does it itself
    - next: draw many batches at once, ahead of the epoch, or make the sampler cheaper: workers do not help
""")
OTHER_WORK = SERIAL_LOADING.line("""
    the training thread spends {lost:.0%} of its time on work other than training, mostly at {at}: no worker does it
    - saw stack: is outside of model, backward, optimizer and loader | {lost:.0%} of {seen.samples} samples | below 20 %
    - saw native if profiled: is not in torch's code | {native:.0%} of the native profile | little
    - not starved_by_transforms: it waits for no worker
    - next: if {at} makes data, move it to DataLoader workers or ahead of training; if not, do it less often
""")
RECURRENT_WORK = replace(
    OTHER_WORK,
    summary="the training thread spends {lost:.0%} of its time on work other than training, mostly at {at}, "
    "which recurs between steps",
    next=("run {at} less often, once before training, or in a separate process",),
)


def serial_loading(case: Case) -> Outcome:
    """Fires when the training thread spends its time in the loader's fetch or sampler, or in Python of its own between steps."""
    found = worst(case, partial(makes_batches, case))
    if found is None:
        others = (_works_beside(case, rank, whole) for rank, whole in working(case))
        return next((one for one in others if one is not None), None)
    rank, seen, lost = found
    spent = budget(case, rank)
    draws = seen.seen(*STEPS) and spent.share(Bin.DRAWING) >= MOSTLY * lost
    frame = spent.of(Bin.DRAWING if draws else Bin.LOADING).top_line()
    sure = min(certainty(lost), loading_ceiling(case, rank, lost))
    return slow(case, DRAWS if draws else FETCHES, rank, lost, frame=frame, confidence=sure, seen=seen)


OTHER = (Bin.OTHER, Bin.PROGRAM, Bin.UNPICKLING)


def _works_beside(case: Case, rank: Member, whole: Profile) -> Finding | None:
    """A finding about a training thread that does other work for a good part of the time, and trains as well."""
    if (now := case.progress[rank.pid]).kind == "busy" and now.steps is not None:
        return None  # steps are late: one long phase is no part of each step
    seen, native = since_first_step(case, rank, whole), native_python_share(case, rank)
    makes_experience = in_rollout(case.history, seen)

    def works(stack: Stack) -> bool:
        return bin_of(case, stack) in OTHER and not makes_experience(stack)

    def phase(stack: Stack) -> bool:
        return is_at(frame, stack) and works(stack)

    frame = seen.top_line(works)
    locks = (at_file_lock(case, one) for one in case.ranks)
    if any(locked is not None and locked.waits.frame == frame for locked in locks):
        return None  # most of it is a wait for who has a file locked
    python = seen.share_where(lambda stack: own_python(case.history, stack) or awaits_a_program(stack))
    kept = keeps_gil(whole, is_in(case, *OTHER)) if native is None else native >= OFTEN
    apart = is_apart(case, rank, seen, phase)
    lost = min(seen.share_where(works), recurrent(case, rank, seen, phase)[1] if apart else 1.0)
    trains = seen.seen(*STEPS) or computed(case, rank)
    if seen.samples < ENOUGH_SAMPLES or lost < OWN_SHARE or not (python >= NOTABLE or kept) or not trains:
        return None
    facts = Facts(frame=frame, seen=seen, native=native or 0.0, profiled=native is not None, explains=RESIDUE * lost)
    facts |= Facts(confidence=Level.HIGH if case.history.entities(r.SourceLine) else Level.MEDIUM)
    return slow(case, RECURRENT_WORK if apart else OTHER_WORK, rank, lost, **facts)


def loading_ceiling(case: Case, rank: Member, lost: float) -> float:
    """Less where nothing is to be won (training on CPUs that are all taken, and loading is the lesser part), or where it sleeps.

    So it is where no step is seen: what is loaded may never make a batch.
    """
    spare = spare_cores(case, rank.pid) if not cards_of(case.history, rank.pid).uuids else None
    if spare is not None and spare < MUCH and lost < MOSTLY:
        return Level.LOW
    unseen = case.progress[rank.pid].kind != "moving"
    return Level.MEDIUM if unseen or sleeps_for_a_lock(case, rank, lost) else 1.0


LONG_WAIT_SECONDS = 0.2
# times steps that do not wait; turns of the loop for each long wait: two workers are merely slow
LONGER, STEPS_BETWEEN = 2.0, 3.0
BURSTS = BURSTY_LOADING.line("""
    batches arrive in bursts: {bursts} waits of {each:time}, each followed by {steps:.0f} steps
    - saw stack: few long waits | {bursts} waits of {each:time}, {steps:.1f} steps for each | waits of equal length
    - not starved_by_transforms: most steps do not wait at all
    - next: raise prefetch_factor or num_workers
""")


def bursty_loading(case: Case) -> Outcome:
    """Fires when long waits for data alternate with several steps without one."""
    found = starving(case)
    if found is None or found.workers < TWICE:
        return None
    waits = found.profile.runs(lambda stack: "loader_wait" in tags(stack))
    long = [(begin, end) for begin, end in waits if end - begin >= LONG_WAIT_SECONDS]
    lengths = [end - begin for begin, end in long]
    if len(long) < FEW_TIMES or sum(lengths) < MOSTLY * sum(end - begin for begin, end in waits):
        return None
    between = _steps_per_long_wait(case, found, waits, long)
    if between < STEPS_BETWEEN:
        return None
    ceiling = Level.HIGH if len(long) < MANY_TIMES else Level.CERTAIN
    facts = Facts(bursts=len(long), each=median(lengths) or 0.0, steps=between)
    return found.finding(case, BURSTS, ceiling=ceiling, **facts)


def _steps_per_long_wait(
    case: Case, found: Starving, waits: list[tuple[float, float]], long: list[tuple[float, float]]
) -> float:
    """Steps for each long wait, from the first of these to the last: what was before they began is no burst.

    Without an agent a lower bound: how often the thread came to its optimizer, but for the steps that waited for a short while.
    """
    steps = case.steps(found.rank, found.profile.seconds)
    if steps is None or not steps.intervals:
        since, until = long[0][1], long[-1][0]
        sights = tuple(one for one in found.profile.sights if since <= one.at <= until)
        made = Profile(sights, until - since).turns(lambda stack: "optimizer" in tags(stack))
        short = sum(since <= wait[0] < until and wait not in long for wait in waits)
        return (made - short) / (len(long) - 1)
    least = LONGER * (quantile(steps.intervals, 0.25) or 0.0)
    late = [index for index, interval in enumerate(steps.intervals) if interval >= least]
    return (late[-1] - late[0]) / (len(late) - 1) if len(late) >= FEW_TIMES else 0.0


CHANGING = frozenset({"loader_start", "loader_stop"})
# Workers that are spawned are started at once and awaited long.
WAITING = CHANGING | {"loader_wait"}
# One that was forked takes its first task within hundredths of a second; one that imports the program is seen at it.
STARTS_SECONDS = 0.5
RESPAWNED = WORKER_RESPAWN.line("""
    the DataLoader starts its workers again and again: {workers} worker processes were seen, {gone} have ended[ (at {at})]
    - saw process: new worker pids | {workers} workers seen, {alive} alive | the same pids all the time
    - saw stack: starts or awaits workers | {lost:.0%} of {seen.samples} samples | once per run
    - not dead_worker: steps continue after each change
    - next: DataLoader(persistent_workers=True), made once, before the first epoch
""")


def worker_respawn(case: Case) -> Outcome:
    """Fires when generations of workers come and go while the rank works."""
    for rank, seen in working(case):
        since = case.at - max(LATELY_SECONDS, seen.seconds)
        children = (child for child in case.job.children(rank.pid) if _is_worker(case, child))
        workers = [child for child in children if _ended_at(case, child) >= since]
        alive = sum(worker.alive for worker in workers)
        gone, size = len(workers) - alive, max(1, alive)
        if gone < size or len(workers) < TWICE * size:
            continue
        starts = [_starting(case, worker) for worker in workers]
        lost = sum(one.reading.samples for one in seen.sights if _changes_workers(one, starts)) / seen.samples
        if lost < NOTABLE:
            continue
        frame = seen.top_line(lambda stack: not tags(stack).isdisjoint(WAITING))
        sure = max(Level.HIGH, certainty(lost))
        now = case.progress[rank.pid]
        if now.kind != "moving" and begins_anew(case.history, rank.pid, now.thread) is not None:
            sure = Level.MEDIUM  # of no epoch a step was seen
        facts = Facts(workers=len(workers), alive=alive, gone=gone, seen=seen)
        return slow(case, RESPAWNED, rank, lost, frame=frame, confidence=sure, **facts)
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
    found = tags_seen(case.history, child.pid, child.pid)
    return (
        child.role == "worker" or "worker" in found or (child.role == "child" and child.alive and found == {"import"})
    )


RULES = (
    Rule(STARVED_BY_TRANSFORMS, starved_by_transforms),
    Rule(STARVED_BY_NETWORK, starved_by_network),
    Rule(STARVED_BY_STORAGE, starved_by_storage),
    Rule(SERIAL_LOADING, serial_loading),
    Rule(BURSTY_LOADING, bursty_loading),
    Rule(WORKER_RESPAWN, worker_respawn),
)
