"""Python holds training up: loops, hooks, the garbage collector, debugging aids, locks."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import msgspec

from perfwatch.triage.cards.accelerated import accelerated, launching_share, slow_on_gpu, sync_share
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.hardware import COPIES_MIB_PER_SECOND, traffic_mib_per_second
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import GIL_SWITCHES_PER_SECOND, GIL_WAIT_SECONDS, motion, python_threads
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.budget import (
    HOOK_CALLERS,
    OWNED_LOOKS,
    PROFILE_SAMPLES,
    Bin,
    CalledBack,
    at_file_lock,
    bin_of,
    budget,
    callback_path,
    called_back,
    calls_back,
    compiles,
    keeps_gil,
    mode_on,
    native_profile,
    profiles,
    python_called_back,
    since_first_step,
)
from perfwatch.triage.shares.data import starving, turns
from perfwatch.triage.shares.profile import Profile, profile
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    FEW_TIMES,
    LATELY_SECONDS,
    LOST_SHARE,
    MOSTLY,
    MUCH,
    NOTABLE,
    OFTEN,
    TWICE,
)
from perfwatch.triage.shares.training import decodes, in_compiler, passed_before, returns, steps_around, untorn
from perfwatch.triage.slowness import (
    NOTED,
    RESIDUE,
    SURE_SHARE,
    Part,
    certainty,
    noted,
    phases,
    sleeps_for_a_lock,
    slow,
    working,
    worst,
)
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.waits.threads import acquires, free, holds, path_under_lock
from perfwatch.triage.words.code import line_of, lock_taken, names
from perfwatch.triage.words.frames import (
    any_tag,
    inner_tags,
    is_standard,
    is_user,
    own_frames,
    short_name,
    show,
    tags,
    tags_of,
    user_frame,
    user_frames,
)
from perfwatch.verdict import Abstention, Culprit, Evidence, Finding, Level, Missing, Outcome
from perfwatch_probes.readings import Frame, GpuSample, ProcessUsage, SourceLine, Stack, Thread

HOST_BOUND_PYTHON = Cause("host_bound_python", "slow", "user_code", (Thread, Stack, GpuSample))
GARBAGE_COLLECTION = Cause("garbage_collection", "slow", "user_code", (Stack,))
DEBUG_APIS_ON = Cause("debug_apis_on", "slow", "user_code", (Stack,))
CONTENDED_LOCK = Cause("contended_lock", "slow", "user_code", (Thread, Stack))

# What the host does, and what helps: each launch is a part of a kernel's time, so that launches alone never leave a card idle.
COMPUTES = ("Python computes at {at}", "rewrite {at} with tensors or a native library instead of Python loops")
IDLES = (
    "the host computes itself, mostly at {at}",
    "move the computation at {at} to the GPU, do it less often, or give it more CPU threads",
)
LAUNCHES = (
    "Python launches kernels more slowly than the card runs them, mostly at {at}",
    'fewer, larger launches: torch.compile(mode="reduce-overhead"), CUDA graphs, fused=True in the optimizer',
)
CARD_WAITS = HOST_BOUND_PYTHON.line("""
    the GPU waits for the host {card.waiting:.0%} of the time: {does}
    - saw {card.source} of {name}: waits between kernels | {shown} | a kernel resident all the time
    - saw schedstat: the training thread runs | {runs:.0%} of a core | waits for the GPU
    - saw stack: launches or computes, and waits neither for data nor for the card | {launching:.0%} of {seen.samples} samples,
      {syncs:.0%} in synchronisations | a part of the time in synchronisations
    - not synchronising: only {syncs:.0%} of the samples wait for the card
    - next: {helps}
""")


def host_bound_python(case: Case) -> Outcome:
    """Fires on a card that waits while the host runs as fast as it can, and on steps on a CPU that loops of Python hold up."""
    for one in accelerated(case):
        seen, card = one.profile, one.card
        waits = card.waits_for_launches and card.waiting >= LOST_SHARE and seen.samples >= ENOUGH_SAMPLES
        if not waits or decodes(seen, case.steps(one.rank)):
            continue
        launching, syncs = launching_share(case, seen), sync_share(case, seen)
        if one.runs < MOSTLY or launching < MOSTLY or syncs >= NOTABLE:
            continue
        lost, moved = min(card.waiting, launching), traffic_mib_per_second(case.history, card)
        sure = min(certainty(lost), Level.MEDIUM if moved is None or moved >= COPIES_MIB_PER_SECOND else 1.0)
        line = seen.top_line(lambda stack: bin_of(case, stack) is not Bin.SAVING) or seen.top_line()
        known = COMPUTES if _computes_at(seen, line) else IDLES if card.kind == "idle" else LAUNCHES
        does, helps = (text.format(at=show(line)) for text in known)
        facts = Facts(runs=one.runs, launching=launching, syncs=syncs, does=does, helps=helps, frame=show(line))
        return slow_on_gpu(case, CARD_WAITS, one, lost, explains=RESIDUE * lost, confidence=sure, **facts)
    return holds_up_steps(case)


def _computes_at(seen: Profile, frame: Frame | None) -> bool:
    """True if most of the time goes into Python of one function, which keeps the GIL, and into nothing that it calls."""

    def within(stack: Stack) -> bool:
        inner = stack.frames[:1]
        return frame is not None and any((one.function, one.file) == (frame.function, frame.file) for one in inner)

    return seen.share_where(within) >= MOSTLY and keeps_gil(seen, within)


HELD_UP = HOST_BOUND_PYTHON.line("""
    Python that torch calls back within each step, {at}, takes {lost:.0%} of the time[, mostly at {inner}]
    - saw stack: turns in loops of Python below {at} | {lost:.0%} of {seen.samples} samples; {one.owned} dumps with the GIL,
      {one.released} without | arithmetic of torch, without the GIL
    - not cpu_training: it is not torch that computes there
    - next: rewrite {at} with tensors instead of Python loops, or call it in fewer steps
""")


def holds_up_steps(case: Case) -> Finding | None:
    """Fires on a rank without work for a card whose steps are held up by Python that torch calls back."""
    found = [(rank, seen, one) for rank, seen in working(case) if (one := _without_a_card(case, rank)) is not None]
    if not found:
        return HOOKED_LIBRARY.judge(case)
    rank, seen, one = max(found, key=lambda each: each[2].share)
    inner, few = show(seen.top_line(lambda stack: called_back(stack) == one.frame)), one.owned < TWICE
    sure = NOTED if few else Level.HIGH if one.owned < OWNED_LOOKS else Level.CERTAIN
    facts = Facts(frame=one.frame, seen=seen, one=one, inner=inner if inner != show(one.frame) else None)
    facts |= Facts(decides_in_seconds=max(0.0, LATELY_SECONDS - seen.seconds) if few else 0.0)
    return slow(case, HELD_UP, rank, one.share, confidence=min(certainty(one.share), sure), **facts)


def _without_a_card(case: Case, rank: Member) -> CalledBack | None:
    """What is Python there, of a rank whose cards, if it has any, are given nothing to do: else they tell what it costs."""
    found = None if _uses_a_card(case, rank) else python_called_back(case, rank)
    return found if found is not None and found.is_python else None


def _uses_a_card(case: Case, rank: Member) -> bool:
    return any(card.kind != "idle" or card.returns for card in regimes(case.history, rank.pid, LATELY_SECONDS))


def _in_hooked_library(stack: Stack) -> bool:
    """True if a stack is in a library, neither torch's nor the standard one, that a hook of the program called."""
    path = callback_path(stack)
    if not path or is_user(path[0]) or is_standard(path[0]) or inner_tags(stack):
        return False
    return calls_back(stack.frames[stack.frames.index(path[-1]) + 1], path[-1], HOOK_CALLERS)


IN_A_HOOK = HOST_BOUND_PYTHON.line("""
    a hook that torch calls within each step computes {lost:.0%} of the time, mostly at {at}, and not in torch
    - saw stack: is in another library than torch below a hook | {lost:.0%} of {seen.samples} samples | arithmetic of torch
    - not cpu_training: it is not torch that computes there
    - next: call {at} in fewer steps, give it less data, or use tensors
""")
HOOKED_LIBRARY = Part(
    IN_A_HOOK,
    (Bin.HOOKS,),
    times=FEW_TIMES,
    given=lambda case, rank, spent: (
        not _uses_a_card(case, rank) and spent.of(Bin.HOOKS).share_where(_in_hooked_library) >= MOSTLY
    ),
    ceiling=Level.HIGH,
)


# CPython 3.10 to 3.13, gcmodule.c / gc.c.
COLLECTOR = tuple(
    "gc_collect collect. deduce_unreachable subtract_refs move_unreachable visit_decref visit_reachable update_refs untrack_".split()
)
COLLECTS = GARBAGE_COLLECTION.line("""
    garbage collection takes {lost:.0%} of the training thread's time[, at {at}]
    - saw stack if calls: calls gc.collect | {calls:.0%} of {seen.samples} samples | 0 %
    - saw native if inside: is in the collector | {inside:.0%} of the time of the native profile | below 3 %
    - not endless_python: steps continue
    - next: gc.freeze() after setup, gc.set_threshold(50_000, 20, 20), no gc.collect() in the loop
""")


def _in_collector(case: Case, rank: Member) -> float:
    """Share of the time of a native profile of a rank that goes on: a thread that sleeps most of it has few samples."""
    seen = native_profile(case, rank, LATELY_SECONDS)
    if seen is None or case.progress[rank.pid].kind != "moving":
        return 0.0
    share = sum(share for symbol, share in seen.shares.items() if symbol.lstrip("_").startswith(COLLECTOR))
    return share * min(1.0, seen.samples / PROFILE_SAMPLES)


def _resident_bytes(case: Case, rank: Member) -> float:
    """Several ranks may collect all the time, and all but one wait in each step: a collection takes as long as there are objects."""
    usage = case.history.latest(ProcessUsage, rank.pid)
    return usage.reading.resident_bytes if usage is not None else 0.0


garbage_collection = Part(
    COLLECTS,
    (Bin.GARBAGE,),
    lost=lambda case, rank, spent: max(spent.share(Bin.GARBAGE), _in_collector(case, rank)),
    facts=lambda case, rank, spent, _: Facts(calls=spent.share(Bin.GARBAGE), inside=_in_collector(case, rank)),
    weight=_resident_bytes,
).judge


PROFILERS = frozenset(("torch.profiler.profile", "torch.autograd.profiler.profile", "autograd.profiler.profile"))
PROFILERS_OWN = frozenset("activities record_shapes profile_memory with_stack with_flops with_modules".split())
SCHEDULES = frozenset({"schedule", "enabled", "**"})
ANOMALY = frozenset({"set_detect_anomaly", "detect_anomaly"})
FEW_STACKS = 0.03  # of the samples: formatted for anomaly detection, where it is known to be on
BLOCKING = "CUDA_LAUNCH_BLOCKING"
TOOLS = {  # by comm, which is cut to 15
    "ncu": "Nsight Compute (ncu)",
    "compute-sanitiz": "compute-sanitizer",
    "cuda-gdb": "cuda-gdb",
}
AID = DEBUG_APIS_ON.line("""
    a debugging aid is on: {first.claim} ({first.observed})[ at {works_at}][, switched on around {around}]
    - not host_bound_python: {why}
    - next: remove torch.autograd.set_detect_anomaly, the profiler or the variable
""")
UNDER_A_TOOL = DEBUG_APIS_ON.line("""
    the job runs under {tool}, through which every CUDA call passes; its GPU waits for the host {lost:.0%} of the time
    - saw process: runs under {tool} | a process above it | none
    - not host_bound_python: what the host does passes through {tool}
    - next: start it without {tool}, and look again
""")


@dataclass(frozen=True)
class Aid:
    """One debugging aid that is on: the trace that it leaves, the share of the time that it costs as far as that is seen, how sure it is
    that it costs any, the line that it works at where only the aid knows it, and the line around which it was switched on.
    """  # fmt: skip

    evidence: Evidence
    lost: float = 0.0
    sure: float = Level.HIGH
    line: Frame | None = None
    around: Frame | None = None


def debug_apis_on(case: Case) -> Outcome:
    """Fires on the traces that each debugging aid leaves. Of several that are on the first has the best evidence."""
    for rank, seen in working(case):
        if found := tuple(_aids(case, rank, seen)):
            lost, sure, around = max(aid.lost for aid in found), max(aid.sure for aid in found), found[0].around
            frame = budget(case, rank).of(Bin.DEBUGGING).top_line()
            at = frame or next((aid.line for aid in found if aid.line), None)
            facts = Facts(before=tuple(aid.evidence for aid in found), first=found[0].evidence)
            facts |= Facts(why="the aid takes the time" if lost else "the aid is on")
            facts |= Facts(works_at=show(frame), around=show(around))
            sure = max(sure, certainty(lost)) if lost >= LOST_SHARE else sure
            return slow(case, AID, rank, lost, confidence=sure, frame=at, **facts)
        names = (one.process.name for one in case.job.lineage(rank.process.parent_pid))
        tool, lost = next((TOOLS[name] for name in names if name in TOOLS), ""), _waiting(case, rank)
        # A cause that says what the host waits for is the better answer; that Python is slow is not.
        if tool and lost >= LOST_SHARE:
            sure, explains = min(Level.HIGH, certainty(lost)), 1.2 * RESIDUE * lost
            return slow(case, UNDER_A_TOOL, rank, lost, explains=explains, confidence=sure, culprits=(), tool=tool)
    return None


def _waiting(case: Case, rank: Member) -> float:
    """Share of the time that a card of the rank waits for its host."""
    return max((card.waiting for card in regimes(case.history, rank.pid, LATELY_SECONDS)), default=0.0)


def _aids(case: Case, rank: Member, seen: Profile) -> Iterator[Aid]:
    """All that are on in a rank, the best seen first."""
    pid, waiting, of = f"pid {rank.pid}", _waiting(case, rank), f"of {seen.samples} samples"
    told, formats = bool(mode_on(case, rank, "anomaly_detection")), seen.share("format_stack", "anomaly")
    own = seen.count(lambda stack: tags(stack) >= {"anomaly", "format_stack"} and "compile" not in tags(stack))
    known = told or own >= FEW_STACKS * seen.samples  # by the agent, or by frames that compiling has as well
    held = min(waiting, formats + seen.share("backward")) if known else 0.0
    around = partial(_line_inside, case, seen, lambda entered: entered.partition("(")[0].rpartition(".")[2] in ANOMALY)
    if formats >= (FEW_STACKS if known else NOTABLE):
        claim = "anomaly detection formats a stack for each operation"
        yield Aid(case.saw("stack", pid, claim, f"{formats:.0%} {of}", "0 %"), max(formats, held), around=around())
    elif held >= LOST_SHARE and told:
        on = case.saw("agent", pid, "anomaly detection is on", "after the newest step", "off")
        yield Aid(on, held, around=around())
    traces = _tracing(case.history, seen)
    if (share := seen.share_where(traces)) >= NOTABLE:
        claim = "the interpreter calls a trace function (sys.settrace or sys.setprofile)"
        yield Aid(case.saw("stack", pid, claim, f"{share:.0%} {of}", "0 %"), share, line=seen.top_line(traces))
    if (share := seen.share_where(profiles)) >= NOTABLE:
        yield Aid(case.saw("stack", pid, "a profiler runs in the loop", f"{share:.0%} {of}", "0 %"), share)
    if case.job.members[rank.pid].process.environment.get(BLOCKING) == "1":
        # Each launch waits for its kernel, and the card for the next: what that costs is known of cards that were sampled.
        weighed = bool(regimes(case.history, rank.pid, LATELY_SECONDS)) or not cards_of(case.history, rank.pid).uuids
        sure = noted(waiting if weighed else None, Level.HIGH)
        yield Aid(case.saw("environment", pid, f"{BLOCKING} is set", "1", "unset"), waiting, sure=sure)
    if always := _line_inside(case, seen, _records_for_good):
        claim = "the loop runs inside torch's profiler"
        yield Aid(case.saw("source", show(always) or "", claim, "no schedule", "none"), line=always)
    usage = case.history.latest(ProcessUsage, rank.pid)
    if usage is not None and (tracer := usage.reading.tracer_pid):
        yield Aid(case.saw("usage", pid, "a tracer is attached", f"TracerPid {tracer}", "0", usage.at), sure=NOTED)


def _line_inside(case: Case, seen: Profile, enters: Callable[[str], bool]) -> Frame | None:
    """The line of the training thread that mostly stands inside a ``with`` that enters something."""
    inside: Counter[Frame] = Counter()
    for one in seen.sights:
        for frame in user_frames(one.reading):
            line = line_of(case.history, frame)
            if line is not None and any(map(enters, line.within)):
                inside[frame] += one.reading.samples
                break
    return inside.most_common(1)[0][0] if inside.total() >= MOSTLY * seen.samples and inside else None


def _records_for_good(entered: str) -> bool:
    """True if a ``with`` enters torch's profiler for good: a schedule, the second argument, lets it rest between windows."""
    name, _, given = entered.rstrip(")").partition("(")
    words = given.split(", ")
    known = name in PROFILERS or bool(PROFILERS_OWN & set(words))  # a trainer's own profiler has a ``profile`` as well
    return name.rpartition(".")[2] == "profile" and known and words.count("*") < 2 and not SCHEDULES & set(words)


def _tracing(history: History, seen: Profile) -> Callable[[Stack], bool]:
    """What tells whether a stack is in a function for tracing that the interpreter calls, and no line of the program."""
    callers: dict[tuple[str, str], Counter[Frame]] = defaultdict(Counter)
    for one in seen.sights:
        for frame, caller in pairwise(own_frames(one.reading)):
            if (line := line_of(history, frame)) is not None and line.traces:
                callers[frame.function, frame.file][caller] += one.reading.samples
    found = {one for one, places in callers.items() if _is_called_by_none(history, short_name(one[0]), places)}
    return lambda stack: any((frame.function, frame.file) in found for frame in own_frames(stack))


def _is_called_by_none(history: History, function: str, callers: Counter[Frame]) -> bool:
    """True if functions of many kinds stand below one, and hardly a line of them calls it by its text."""
    lines = [(line_of(history, caller), samples) for caller, samples in callers.items()]
    calling = sum(samples for line, samples in lines if line is not None and function in names(line.calls))
    places = {(caller.function, caller.file) for caller in callers}
    return calling < NOTABLE * callers.total() and len(places) >= FEW_TIMES


LOCKED = CONTENDED_LOCK.line("""
    the training thread waits {lost:.0%} of the time at {at} for {lock} while thread {name} {does} at {owner}[;
    it took the lock at {taken}]
    - saw stack: waits for a lock | {lost:.0%} of {seen.samples} samples | below 2 %
    - saw stack of pid {pid} thread {node.tid} if path: holds the lock | {path} | releases it first
    - saw thread of pid {pid} thread {tid}: gets the lock and continues | {moved.times} times | a hang never does
    - saw thread of pid {pid} thread {node.tid} if works: runs meanwhile | {runs:.0%} of a core
    - saw source of pid {pid} thread {node.tid} if rests: sleeps where it holds a lock of that name | at {owner} | releases it first
    - not deadlocked_locks: it runs again and again
    - next: {advice}
""")
FILE_LOCKED = CONTENDED_LOCK.line("""
    the training thread waits {lost:.0%} of the time at {at} for a lock on {path}, held by {holders} meanwhile
    - saw stack: waits for a lock on a file | {lost:.0%} of {seen.samples} samples | below 2 %
    - saw syscall: waits or sleeps while others hold the lock | in {looks} samples | hardly ever
    - not waiting_for_file: it gets the lock again and again
    - not slow_output: it sleeps there: nothing is written
    - next: hold the lock for as long as one write takes, and do the rest outside of it
    - next: fuser -v {path}
""")
IN_TURN = CONTENDED_LOCK.line("""
    {waits} waiting in turn for {locked.lock}, which one of them holds at a time[, mostly at {line}]
    - saw lock of {locked.lock}: is held by another worker | {locked.sightings} times, by pid {named} | free
    - not starved_by_transforms: most of the workers wait, one works
    - next: {locked.next}
""")


def contended_lock(case: Case) -> Outcome:
    """Fires on a training thread that sleeps for a lock again and again while another thread runs, or whose workers wait for one."""
    own = _kept_from_lock(case) or _kept_from_file(case) or _workers_in_turn(case)
    gil = kept_from_gil(case)
    found = [one for one in (own, gil) if isinstance(one, Finding)]
    return max(found, key=lambda one: one.lost_share or 0.0) if found else gil


def _kept_from_lock(case: Case) -> Finding | None:
    """A training thread that sleeps at its own lock while another thread runs, and goes on now and then."""
    for rank in case.ranks:
        spent = budget(case, rank)
        seen, lost = spent.seen, spent.share(Bin.LOCK)
        if seen.samples < ENOUGH_SAMPLES or lost < LOST_SHARE or not sleeps_for_a_lock(case, rank, lost):
            continue
        if not case.goes_on(rank):
            continue
        frame, busy = spent.of(Bin.LOCK).top_line(), _running_threads(case, rank)
        held = _holding(case, rank, line_of(case.history, frame))
        owner = held if held is not None else next(iter(busy), None)
        if owner is None:
            continue
        works, node = owner in busy, node_of(case.history, case.job, rank.pid, owner)
        unsure = held is None and (len(busy) > 1 or free(case.history, node))
        sure = min(Level.MEDIUM if unsure else Level.CERTAIN if works else Level.HIGH, certainty(lost))
        one = _held(case, spent.of(Bin.LOCK), profile(case.history, rank.pid, owner, LATELY_SECONDS), node)
        line, taken = show(one.line), show(one.taken)
        facts = Facts(node=node, name=node.name or owner, owner=line, does="works" if works else "rests")
        facts |= Facts(
            tid=case.progress[rank.pid].thread, moved=case.moves(rank), works=works, rests=not works, seen=seen
        )
        facts |= Facts(runs=motion(case.history, rank.pid, owner, LATELY_SECONDS).run_share or 0.0)
        facts |= Facts(lock=one.lock, path=one.path, taken=taken if taken != line else None)
        facts |= Facts(advice=one.advice.format(owner=line))
        culprits = (msgspec.structs.replace(culprit(node), frame=taken if one.by_library else line),)
        return slow(case, LOCKED, rank, lost, frame=frame, confidence=sure, culprits=culprits, **facts)
    return None


OUTSIDE = "look at {owner}: do the slow part outside of the lock"
OUTSIDE_OF_HANDLER = (
    "log through logging.handlers.QueueHandler, so that only QueueListener's thread runs {owner}; or move that out of "
    "the handler, and log less"
)


@dataclass(frozen=True)
class HeldLock:
    """A lock that another thread holds.

    Attributes:
        lock: which it is, in words.
        line: at which the program's thread works meanwhile.
        taken: the program's line that took the lock, or called the library that does.
        path: from there to the slow line, in words; empty where it is one function, or not known.
        by_library: a library takes it, so that ``taken`` is all that the program shows of it.
        advice: what helps.
    """

    lock: str
    line: Frame | None
    taken: Frame | None
    path: str = ""
    by_library: bool = False
    advice: str = OUTSIDE


def _held(case: Case, waiting: Profile, holding: Profile, node: Node) -> HeldLock:
    """What the stacks of both threads say of the lock: that of the holder now, and of a lock that a library takes most of its stacks."""
    asked = max((one.reading for one in waiting.sights), key=lambda stack: stack.samples)
    logs = any_tag(tags_of(asked.frames[0].function, asked.frames[0].file), "log", "log_lock")
    name = lock_taken(line_of(case.history, user_frame(asked)))
    lock = "a logging handler's lock" if logs else f"the lock {name!r}" if name else "a lock"
    stacks = Counter[tuple[Frame, ...]]()
    for stack in (one.reading for one in holding.sights):
        stacks[stack.frames] += stack.samples if path_under_lock(case.history, asked, stack) else 0
    usual = max(stacks, key=lambda frames: stacks[frames], default=())
    now = node.stack.frames if node.stack is not None else ()
    for frames in (now, usual):
        path = path_under_lock(case.history, asked, Stack(pid=node.pid, tid=node.tid, frames=frames))
        if path and (is_user(path[0]) or frames is usual):
            inner, outer = next(filter(is_user, frames), None), next(filter(is_user, frames[len(path) - 1 :]), None)
            to_line = path[: path.index(inner) + 1] if inner in path else path
            if is_user(path[0]):
                return HeldLock(lock, inner, outer, _way(to_line))
            way = _way((outer, *to_line) if outer is not None else to_line)
            return HeldLock(lock, inner, outer, way, True, OUTSIDE_OF_HANDLER if logs else OUTSIDE)
    return HeldLock(lock, node.frame, node.frame)


def _way(path: tuple[Frame, ...]) -> str:
    """Frames in words, outermost first: lines of the program's own, names of functions of libraries."""
    names_of = dict.fromkeys((show(frame) or "") if is_user(frame) else frame.function for frame in path)
    return " > ".join(names_of) if len(names_of) > 1 else ""


def _kept_from_file(case: Case) -> Finding | None:
    """A training thread that waits again and again for a lock on a file, which other processes hold meanwhile."""
    locks = [locked for rank in case.ranks if (locked := at_file_lock(case, rank)) is not None]
    locked = max(locks, key=lambda one: one.waits.share, default=None)
    if locked is None or locked.waits.share < LOST_SHARE or not case.goes_on(locked.waits.rank):
        return None
    waits, clock = locked.waits, case.steps(locked.waits.rank)
    if clock is not None and clock.paused(waits.seen.seconds):
        return None  # it waited once, for long
    nodes = [node_of(case.history, case.job, pid) for pid in locked.holders if pid in case.job.members]
    named = ", ".join(f"rank {node.rank}" if node.rank is not None else f"pid {node.pid}" for node in nodes)
    sure = min(Level.HIGH if locked.sightings >= TWICE else Level.MEDIUM, certainty(waits.share))
    facts = Facts(path=locked.path, looks=len(waits.looks), seen=waits.seen, frame=waits.frame)
    facts |= Facts(holders=named or f"pid {locked.holders[0]} outside of the job")
    own = Culprit(pid=waits.rank.pid, rank=waits.rank.rank, frame=show(waits.frame))
    culprits = (own, *map(culprit, nodes))
    return slow(case, FILE_LOCKED, waits.rank, waits.share, confidence=sure, culprits=culprits, **facts)


def _running_threads(case: Case, rank: Member) -> list[int]:
    """The other Python threads that run, the busiest first."""
    others = case.beside(rank)
    shares = {tid: motion(case.history, rank.pid, tid, LATELY_SECONDS).run_share or 0.0 for tid in others}
    return sorted((tid for tid in others if shares[tid] >= MUCH), key=lambda tid: -shares[tid])


def _holding(case: Case, rank: Member, line: SourceLine | None) -> int | None:
    """The only other thread that stands inside of a ``with`` of a lock of the same name, beyond the line that takes it.

    Failing that, the only one in a loop that takes such a lock by ``acquire``.
    """
    lock, own = lock_taken(line), case.progress[rank.pid].thread
    others = [tid for tid in python_threads(case.history, rank.pid) if lock and tid != own]
    nodes = [node_of(case.history, case.job, rank.pid, tid) for tid in others]
    inside = [one.tid for one in nodes if holds(case.history, one, lock)]
    held = inside or [one.tid for one in nodes if acquires(case.history, one, lock)]
    return held[0] if len(held) == 1 else None


def _workers_in_turn(case: Case) -> Finding | None:
    """A rank waits for data whose makers wait for each other at a lock."""
    found = starving(case)
    locked = turns(case, found) if found is not None else None
    if found is None or locked is None:
        return None
    return found.finding(case, IN_TURN, locked=locked, named=", ".join(map(str, locked.holders)))


# Kept from the GIL. The kernel tells the waits (CPython asks for it in a futex with a timeout of 5 ms, again and again), a dump of all
# stacks the owner. Of a thread that stands the chains tell.

OFTEN_PER_SECOND = GIL_SWITCHES_PER_SECOND[0]  # measured 216 to 256 of a thread that gets a turn now and then
KEPT = CONTENDED_LOCK.line("""
    the training thread waits {lost:.0%} of the time for the GIL, which {holders}
    - saw stack of pid {pid} {name}: owns the GIL | {owned} | the training thread in most
    - saw thread of pid {pid} thread {tid}: asks for the GIL | {asks} | never, or now and then
    - saw thread of pid {pid} thread {owner} if meanwhile: runs meanwhile | {meanwhile:.0%} of a core
    - not held_gil: the training thread gets its turn: it runs {wait.run_share:.0%} of the time
    - next: move {moves} to a separate process, let it sleep between iterations, or use native code that releases the GIL
    - next: python3.13t has no GIL, if every extension of the program is built for it
""")
OWN_WAITS = (Bin.DATA, Bin.RANKS, Bin.LOCK, Bin.SLEEPING, Bin.RETRYING)


@dataclass(frozen=True)
class GilWait:
    """How a training thread waits for the GIL. All shares are of its time."""

    share: float
    run_share: float
    switches_per_second: float
    asking: int  # looks that found it in such a wait
    looks: int


def gil_wait(case: Case, rank: Member) -> GilWait | None:
    """How the training thread waits for the GIL; None where it is not seen to most of the time that it waits for something unknown.

    What it neither runs nor waits for a CPU it sleeps, and of that as much is for the GIL as of the looks that found it asleep.
    A loop of the program's own that polls with so short a timeout looks the same to the kernel: its line tells. A timeout that could not
    be read says nothing: by then the thread may have gone on.
    """
    tid = case.progress[rank.pid].thread
    moved = motion(case.history, rank.pid, tid, LATELY_SECONDS)
    looks = [one.reading for one in case.history.series(Thread, rank.pid, tid, seconds=LATELY_SECONDS)]
    asleep = [one for one in looks if one.state not in ("R", "S") or (one.state == "S" and one.wait is not None)]
    timed = [one.wait for one in asleep if one.wait is not None and one.wait.kind == "futex" and not one.wait.forever]
    left = [one.remaining_seconds for one in timed if one.remaining_seconds is not None]
    asking, known = sum(one <= GIL_WAIT_SECONDS for one in left), len(asleep) - len(timed) + len(left)
    often = moved.switches_per_second or 0.0
    if moved.run_share is None or asking < FEW_TIMES or often < OFTEN_PER_SECOND:
        return None
    share = min((moved.asleep_share or 0.0) * asking / known, 1.0 - budget(case, rank).share(*OWN_WAITS))
    return GilWait(share, moved.run_share, often, asking, len(looks)) if share >= OFTEN else None


def _gil_owners(case: Case, rank: Member) -> tuple[int, Counter[int]]:
    """How many dumps tell who owned the GIL, and in how many each thread did. Each dump shows every thread; equal ones are one record."""
    seen_in, owned = Counter[int](), Counter[int]()
    for pid, tid in case.history.of(Stack, rank.pid):
        for seen in case.history.series(Stack, pid, tid, seconds=LATELY_SECONDS):
            if seen.reading.owns_gil is not None:
                seen_in[tid] += seen.reading.samples
                owned[tid] += seen.reading.samples if seen.reading.owns_gil else 0
    return max(seen_in.values(), default=0), owned


def kept_from_gil(case: Case) -> Outcome:
    """A training thread that goes on, and waits most of its time for the GIL that other threads of its process own."""
    moving = (rank for rank in case.ranks if case.progress[rank.pid].kind == "moving")
    waiting = [(rank, wait) for rank in moving if (wait := gil_wait(case, rank)) is not None]
    told = [(rank, wait, *found) for rank, wait in waiting if (found := _gil_owners(case, rank))[0] >= FEW_TIMES]
    if waiting and not told:
        reason = f"fewer than {FEW_TIMES} dumps show which thread owns the GIL, for which the training thread waits"
        return Abstention(cause=CONTENDED_LOCK.name, missing=(Missing(witness="stack", reason=reason),))
    for rank, wait, dumps, owned in sorted(told, key=lambda one: -one[1].share):
        own = owned.pop(tid := case.progress[rank.pid].thread, 0)
        others = [one for one, times in owned.most_common() if times]
        if owned.total() < max(TWICE, MOSTLY * (owned.total() + own)):
            continue
        node = node_of(case.history, case.job, rank.pid, others[0])
        line = show(profile(case.history, rank.pid, node.tid, LATELY_SECONDS).top_line() or node.frame)
        name = f"thread {node.name or node.tid}"
        beside = f" and {len(others) - 1} other{'s' if len(others) > 2 else ''}" if others[1:] else ""
        often = f"{wait.switches_per_second:.0f} waits a second, runs {wait.run_share:.0%} of a core"
        # Whatever line it is at takes the longer for it.
        facts = Facts(explains=1.0 if wait.share >= SURE_SHARE else wait.share, wait=wait, tid=tid, name=name)
        has = f"{'have' if beside else 'has'}{f', mostly at {line}' if line else ''}"
        facts |= Facts(holders=f"{name}{beside} of its own process {has}", moves=line or f"what {name} computes")
        facts |= Facts(owned=f"in {owned[node.tid]} of {dumps} dumps, the training thread in {own}", owner=node.tid)
        facts |= Facts(asks=f"in {wait.asking} of {wait.looks} samples, {often}")
        facts |= Facts(meanwhile=motion(case.history, rank.pid, node.tid, LATELY_SECONDS).run_share)
        culprits = (msgspec.structs.replace(culprit(node), frame=line),)
        return slow(case, KEPT, rank, wait.share, culprits=culprits, **facts)
    return None


# The compiler

COMPILING = Cause("compiling", "busy", "user_code", (Thread, Stack))
RECOMPILING = Cause("recompiling", "slow", "user_code", (Stack,))

COMPILERS = ("cc1plus", "cc1", "gcc", "g++", "clang", "ptxas", "nvcc", "ld", "as", "triton")
COMPILING_SHARE = 0.85  # where the model runs in between, but no optimizer: each shape is tried once before training
COMPILES = COMPILING.line("""
    torch.compile is compiling[{passed:if}, though passes were made before,]
    - saw stack: is in the compiler, or waits for it | {share:.0%} of {seen.samples} samples | training code
    - saw thread: something works | {runs:.0%} of a core, {helpers} compile processes busy | above 2 %
    - saw engine if passed: made passes before | it ran before this compilation | never
""")
COMES_BACK = RECOMPILING.line("""
    torch.compile compiles again and again: {lost:.0%} of the training thread's time, {times} times in {seen.seconds:time}, at {at}
    - saw stack: the compiler comes back | {times} stretches, {lost:.0%} of {seen.samples} samples | once, at the start
    - not compiling: steps were made in between
    - next: TORCH_LOGS=recompiles
    - next: torch.compile(dynamic=True), mark_dynamic, or padded shapes
""")


def compiling(case: Case) -> Outcome:
    """Fires on a rank whose training thread is in the compiler."""
    at_work = [m for m in case.job.members.values() if m.alive and (m.role == "compile" or m.process.name in COMPILERS)]
    cores = (case.history.rate(ProcessUsage, m.pid, of=lambda u: u.cpu_seconds, seconds=6.0) or 0.0 for m in at_work)
    helpers = sum(used > SIGN_OF_LIFE for used in cores)
    for phase in phases(case, moving=True):
        steps = case.progress[phase.rank.pid].kind == "moving"
        # What a backward pass needs is compiled in autograd's own thread, for which the training thread waits there.
        awaits = helpers > 0 and not steps
        share = phase.profile.share_where(in_compiler(case.history, phase.profile, awaits))
        if share < (COMPILING_SHARE if steps else MOSTLY):
            continue
        whole = case.profile(phase.rank, LATELY_SECONDS)
        again = returns(case.history, whole) > 0 and steps_around(case.history, whole) is not False
        comes_back = steps and (phase.profile.seen("optimizer") or stepped(case.profile(phase.rank)))
        if comes_back or came_back(case, phase.rank, whole):
            continue  # ``recompiling``
        ran_compiler = any(m.process.name in COMPILERS for m in case.job.members.values())
        if phase.runs < SIGN_OF_LIFE and not helpers and not ran_compiler:
            continue
        return phase.finding(
            case, COMPILES, Level.MEDIUM if again else Level.CERTAIN, share=share, helpers=helpers, passed=again
        )
    return None


def recompiling(case: Case) -> Outcome:
    """Fires when the compiler comes back between steps."""
    found = worst(case, lambda rank, seen: _trained(case, rank, seen).share_where(compiles))
    if found is None:
        return None
    rank, whole, lost = found
    seen, steps = _trained(case, rank, whole), case.steps(rank)
    times = len(seen.runs(compiles))
    advanced = steps.advanced > 0 if steps is not None else stepped(seen)
    if times < TWICE or not (advanced or came_back(case, rank, seen)):
        return None
    sure, frame = min(Level.CERTAIN if advanced else Level.HIGH, certainty(lost)), seen.top_line(compiles)
    return slow(case, COMES_BACK, rank, lost, confidence=sure, frame=frame, seen=seen, times=times)


def _trained(case: Case, rank: Member, seen: Profile) -> Profile:
    """The samples since the first step; all of them where a pass is known to have been made before."""
    begun = seen.sights[0].at - seen.sights[0].reading.span_seconds if seen.sights else 0.0
    return seen if passed_before(case.history, rank.pid, begun) else since_first_step(case, rank, seen)


def came_back(case: Case, rank: Member, seen: Profile) -> bool:
    """True if it did so in a loop that makes steps, where none are counted and one takes longer than the window."""
    if case.steps(rank) is not None or returns(case.history, seen) < TWICE:
        return False
    return seen.seen("optimizer") or bool(steps_around(case.history, seen))


def stepped(seen: Profile) -> bool:
    """True if steps were made between compilations."""
    steps = untorn(seen).turns(
        lambda stack: not tags(stack).isdisjoint({"backward", "optimizer"}) and not compiles(stack)
    )
    return steps >= TWICE


RULES = (
    Rule(HOST_BOUND_PYTHON, host_bound_python),
    Rule(GARBAGE_COLLECTION, garbage_collection),
    Rule(DEBUG_APIS_ON, debug_apis_on),
    Rule(CONTENDED_LOCK, contended_lock),
    Rule(COMPILING, compiling),
    Rule(RECOMPILING, recompiling),
)
