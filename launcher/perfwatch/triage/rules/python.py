"""Python holds training up: loops, hooks, the garbage collector, debugging aids, locks."""

from functools import partial

from perfwatch.triage.cards.accelerated import (
    Accelerated,
    accelerated,
    has_gaps,
    launching_share,
    monitored,
    slow_on_gpu,
    sync_share,
)
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.hardware import traffic_mib_per_second
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion, moves, python_threads
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.debugging import Aid, aids, profiles, tool_above, waiting
from perfwatch.triage.shares.own_work import takes_a_lock
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.python import (
    HOOK_CALLERS,
    OWNED_LOOKS,
    CalledBack,
    callback_path,
    called_back,
    calls_back,
    keeps_gil,
    native_profile,
    python_called_back,
)
from perfwatch.triage.shares.saving import in_save
from perfwatch.triage.shares.starving import starving, turns
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    ENOUGH_SAMPLES,
    HIGH,
    LATELY_SECONDS,
    MEDIUM,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    NOTABLE,
    TWICE,
)
from perfwatch.triage.shares.training import decodes
from perfwatch.triage.slowness import LOST_SHARE, NOTED, certainty, in_samples, slow, telling, working
from perfwatch.triage.waits.gil import kept_from_gil
from perfwatch.triage.waits.locks import acquires, free, holds
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.code import calling_line, line_of, lock_taken
from perfwatch.triage.words.frames import inner_tags, is_standard, is_user, show, tags
from perfwatch.verdict import Alternative, Evidence, Finding, Outcome
from perfwatch_probes.readings import Frame, GpuSample, ProcessUsage, SourceLine, Stack, Thread

RETURNS = 3  # stretches, at least, of what is done in each step


HOST_BOUND_PYTHON = Cause("host_bound_python", "slow", "user_code", (Thread, Stack, GpuSample))

COPIES_MIB_PER_SECOND = 1024.0  # of launches alone there are some hundred
RESIDUE = 0.5  # every host-side cause leaves the card waiting: one that explains half as much is the better answer


def host_bound_python(case: Case) -> Outcome:
    """Fires on a card that waits while the host runs as fast as it can, and on steps on a CPU that loops of Python hold up."""
    for one in accelerated(case):
        seen = one.profile
        if decodes(seen, case.steps(one.rank)):
            continue
        if not has_gaps(one.card) or one.card.waiting < LOST_SHARE or seen.samples < ENOUGH_SAMPLES:
            continue
        launching, syncs = launching_share(case, seen), sync_share(case, seen)
        if one.runs < MOSTLY or launching < MOSTLY or syncs >= NOTABLE:
            continue
        lost = min(one.card.waiting, launching)
        moved = traffic_mib_per_second(case.history, one.card)
        copies = moved is None or moved >= COPIES_MIB_PER_SECOND
        line = seen.top_line(lambda stack: not in_save(case, stack)) or seen.top_line()
        frame = show(line)
        does, helps = _does(one, frame, _computes_at(seen, line))
        return slow_on_gpu(
            case,
            HOST_BOUND_PYTHON,
            one,
            lost=lost,
            explains=RESIDUE * lost,
            confidence=min(certainty(lost), MEDIUM if copies else 1.0),
            frame=frame,
            summary=f"the GPU waits for the host {one.card.waiting:.0%} of the time: {does}",
            evidence=(
                monitored(case, one, "waits between kernels", "a kernel resident all the time"),
                case.saw(
                    "schedstat",
                    f"pid {one.rank.pid}",
                    "the training thread runs",
                    f"{one.runs:.0%} of a core",
                    "waits for the GPU",
                ),
                case.saw(
                    "stack",
                    f"pid {one.rank.pid}",
                    "launches or computes, and waits neither for data nor for the card",
                    f"{launching:.0%} of {seen.samples} samples, {syncs:.0%} in synchronisations",
                    "a part of the time in synchronisations",
                ),
            ),
            alternatives=(
                Alternative(cause="synchronising", refuted_by=f"only {syncs:.0%} of the samples wait for the card"),
            ),
            next=(helps,),
        )
    return holds_up_steps(case, HOST_BOUND_PYTHON)


def _does(one: Accelerated, frame: str | None, plain: bool) -> tuple[str, str]:
    """What the host does, and what helps: each launch is a part of a kernel's time, so that launches alone never leave a card idle."""
    if plain:
        return f"Python computes at {frame}", f"write {frame} with tensors or a native library, without loops in Python"
    if one.card.kind == "idle":
        return (
            f"the host computes itself, mostly at {frame}",
            f"compute on the GPU what {frame} computes on the host, less often, or with more CPU threads",
        )
    return (
        f"Python launches kernels more slowly than the card runs them, mostly at {frame}",
        'fewer, larger launches: torch.compile(mode="reduce-overhead"), CUDA graphs, fused=True in the optimizer',
    )


def _in_function(frame: Frame, stack: Stack) -> bool:
    """True if a stack is in the function of a frame, and in nothing that it calls."""
    return bool(stack.frames) and (stack.frames[0].function, stack.frames[0].file) == (frame.function, frame.file)


def _computes_at(seen: Profile, frame: Frame | None) -> bool:
    """True if most of the time goes into Python of one function, which keeps the GIL."""
    if frame is None:
        return False
    within = partial(_in_function, frame)
    return seen.share_where(within) >= MOSTLY and keeps_gil(seen, within)


GARBAGE_COLLECTION = Cause("garbage_collection", "slow", "user_code", (Stack,))

COLLECTING = frozenset({"gc.collect", "collect"})
# CPython 3.10 to 3.13, gcmodule.c / gc.c.
COLLECTOR = (
    "gc_collect",
    "collect.",
    "deduce_unreachable",
    "subtract_refs",
    "move_unreachable",
    "visit_decref",
    "visit_reachable",
    "update_refs",
    "untrack_",
)


def garbage_collection(case: Case) -> Outcome:
    """Fires when the collector costs a good part of the training thread's time."""
    found = _collecting(case)
    if not found:
        return None
    # Several ranks may collect all the time, and all but one wait in each step: a collection takes as long as there are objects.
    most = max(lost for _, _, lost in found)
    alike = [one for one in found if one[2] >= NEARLY_ALL * most]
    rank, seen, lost = max(alike, key=lambda one: (_resident_bytes(case, one[0]), one[2]))
    frame = seen.top_line(lambda stack: collects(case, stack)) or seen.top_line()
    return slow(
        case,
        GARBAGE_COLLECTION,
        rank,
        lost=lost,
        frame=frame,
        summary=f"garbage collection takes {lost:.0%} of the training thread's time"
        + (f", at {show(frame)}" if frame else ""),
        evidence=telling(
            case,
            f"pid {rank.pid}",
            ("stack", "calls gc.collect", _share_of_calls(case, seen), f"{seen.samples} samples", "0 %"),
            ("native", "is in the collector", _share_in_collector(case, rank), "the native profile", "below 3 %"),
        ),
        alternatives=(Alternative(cause="endless_python", refuted_by="steps go on"),),
        next=("gc.freeze() after setup, gc.set_threshold(50_000, 20, 20), no gc.collect() in the loop",),
    )


def _collecting(case: Case) -> list[tuple[Member, Profile, float]]:
    """The ranks in which the collector takes a good part of the time, and how much."""
    found = [
        (rank, seen, max(_share_of_calls(case, seen), _share_in_collector(case, rank))) for rank, seen in working(case)
    ]
    return [one for one in found if one[2] >= LOST_SHARE]


def _resident_bytes(case: Case, rank: Member) -> int:
    seen = case.history.latest(ProcessUsage, rank.pid)
    return 0 if seen is None else seen.reading.resident_bytes


def collects(case: Case, stack: Stack) -> bool:
    """True if a stack stands at a line that calls the collector."""
    if "gc" in tags(stack):
        return True
    line = calling_line(case.history, stack)
    return line is not None and not COLLECTING.isdisjoint(line.calls)


def _share_of_calls(case: Case, seen: Profile) -> float:
    return seen.share_where(lambda stack: collects(case, stack))


def _share_in_collector(case: Case, rank: Member) -> float:
    seen = native_profile(case, rank, LATELY_SECONDS)
    if seen is None or case.progress[rank.pid].kind != "moving":
        return 0.0
    return sum(share for symbol, share in seen.shares.items() if symbol.lstrip("_").startswith(COLLECTOR))


DEBUG_APIS_ON = Cause("debug_apis_on", "slow", "user_code", (Stack,))

UNDER_TOOL_RESIDUE = 0.6  # a cause that says what the host waits for is the better answer; that Python is slow is not


def debug_apis_on(case: Case) -> Outcome:
    """Fires on the traces that each debugging aid leaves."""
    for rank, seen in working(case):
        if seen.samples < ENOUGH_SAMPLES:
            continue
        if found := aids(case, rank, seen):
            return _aid_is_on(case, rank, seen, found)
        if (tool := tool_above(case, rank)) and waiting(case, rank) >= LOST_SHARE:
            return _runs_under(case, rank, tool)
    return None


def _aid_is_on(case: Case, rank: Member, seen: Profile, found: tuple[Aid, ...]) -> Finding:
    """One or more aids are on; the first has the best evidence."""
    lost, sure = max(aid.lost for aid in found), max(aid.sure for aid in found)
    frame = seen.top_line(lambda stack: "format_stack" in tags(stack) or profiles(stack))
    around = found[0].around
    return slow(
        case,
        DEBUG_APIS_ON,
        rank,
        lost=lost,
        explains=max(lost, *(aid.explains for aid in found)),
        confidence=max(sure, certainty(lost)) if lost >= LOST_SHARE else sure,
        frame=frame or next((aid.line for aid in found if aid.line), None),
        summary=f"a debugging aid is on: {found[0].evidence.claim} ({found[0].evidence.observed})"
        + (f" at {show(frame)}" if frame else "")
        + (f", switched on around {show(around)}" if around else ""),
        evidence=tuple(aid.evidence for aid in found),
        alternatives=(
            Alternative(
                cause="host_bound_python",
                refuted_by="it takes the time" if lost else "it is on, whatever it costs",
            ),
        ),
        next=("take torch.autograd.set_detect_anomaly, the profiler or the variable out",),
    )


def _runs_under(case: Case, rank: Member, tool: str) -> Finding:
    """Each CUDA call of the rank passes through a tool, and its card waits for that, if for nothing else that is known."""
    lost = waiting(case, rank)
    return slow(
        case,
        DEBUG_APIS_ON,
        rank,
        lost=lost,
        explains=UNDER_TOOL_RESIDUE * lost,
        confidence=min(HIGH, certainty(lost)),
        culprits=(),
        summary=f"the job runs under {tool}, through which every CUDA call passes; its GPU waits for the host {lost:.0%} of the time",
        evidence=(case.saw("process", f"pid {rank.pid}", f"runs under {tool}", "a process above it", "none"),),
        alternatives=(Alternative(cause="host_bound_python", refuted_by=f"what the host does passes through {tool}"),),
        next=(f"start it without {tool}, and look again",),
    )


CONTENDED_LOCK = Cause("contended_lock", "slow", "user_code", (Thread, Stack))

RESTED_SECONDS = 2.0  # longer than the waits within a healthy step


def contended_lock(case: Case) -> Outcome:
    """Fires on a training thread that sleeps for a lock again and again while another thread runs, or whose workers wait for one."""
    own, gil = _kept_from_lock(case) or workers_in_turn(case, CONTENDED_LOCK), kept_from_gil(case, CONTENDED_LOCK)
    found = [one for one in (own, gil) if isinstance(one, Finding)]
    return max(found, key=lambda one: one.lost_share or 0.0) if found else gil


def _kept_from_lock(case: Case) -> Finding | None:
    """A training thread that sleeps at its own lock while another thread runs, and goes on now and then."""
    for rank in case.ranks:
        seen = case.profile(rank, LATELY_SECONDS)
        lost = seen.share_where(lambda stack: takes_a_lock(case.history, stack))
        if seen.samples < ENOUGH_SAMPLES or lost < LOST_SHARE or not _sleeps_and_goes_on(case, rank, lost):
            continue
        frame = seen.top_line(lambda stack: takes_a_lock(case.history, stack))
        busy = _running_threads(case, rank)
        held = _holding(case, rank, line_of(case.history, frame))
        owner = held if held is not None else next(iter(busy), None)
        if owner is None:
            continue
        works, node = owner in busy, node_of(case.history, case.job, rank.pid, owner)
        if works and (node.motion.ran_ago_seconds or 0.0) >= RESTED_SECONDS:
            continue  # it worked a while ago: a thread that is blocked now releases nothing
        ceiling = CERTAIN if works else HIGH
        if held is None and (len(busy) > 1 or free(case.history, node)):
            ceiling = MEDIUM
        return slow(
            case,
            CONTENDED_LOCK,
            rank,
            lost=lost,
            frame=frame,
            confidence=min(ceiling, certainty(lost)),
            summary=f"the training thread waits {lost:.0%} of the time at {show(frame)} for a lock while thread "
            f"{node.name or owner} {'works' if works else 'rests'} at {show(node.frame)}",
            evidence=_lock_evidence(case, rank, seen, lost, node, works),
            culprits=(culprit(node),),
            alternatives=(Alternative(cause="deadlocked_locks", refuted_by="it goes on again and again"),),
            next=(f"look at {show(node.frame)}: do the slow part outside of the lock",),
        )
    return None


def _sleeps_and_goes_on(case: Case, rank: Member, lost: float) -> bool:
    tid = case.progress[rank.pid].thread
    looks = case.history.series(Thread, rank.pid, tid, seconds=LATELY_SECONDS)
    asleep = sum(1 for one in looks if (wait := one.reading.wait) and wait.kind == "futex" and wait.forever)
    if not looks or asleep / len(looks) < MOSTLY * lost:
        return False
    moved = moves(case.history, rank.pid, tid)
    return case.progress[rank.pid].kind == "moving" or (moved.times >= TWICE and moved.recurrent)


def _running_threads(case: Case, rank: Member) -> list[int]:
    """The other Python threads that run, the busiest first."""
    others = [tid for tid in python_threads(case.history, rank.pid) if tid != case.progress[rank.pid].thread]
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


def _lock_evidence(
    case: Case, rank: Member, seen: Profile, lost: float, owner: Node, works: bool
) -> tuple[Evidence, ...]:
    tid = case.progress[rank.pid].thread
    moved = moves(case.history, rank.pid, tid)
    entity = f"pid {rank.pid} thread {owner.tid}"
    runs = motion(case.history, rank.pid, owner.tid, LATELY_SECONDS).run_share or 0.0
    return (
        in_samples(case, rank, seen, "waits for a lock", lost, "below 2 %"),
        case.saw("thread", f"pid {rank.pid} thread {tid}", "goes on", f"{moved.times} times", "0 would mean a hang"),
        case.saw("thread", entity, "runs meanwhile", f"{runs:.0%} of a core")
        if works
        else case.saw(
            "source", entity, "rests where a lock of that name is held", f"at {show(owner.frame)}", "lets go first"
        ),
    )


def holds_up_steps(case: Case, cause: Cause) -> Finding | None:
    """Fires on a rank without work for a card whose steps are held up by Python that torch calls back."""
    found = [(rank, seen, one) for rank, seen in working(case) if (one := _without_a_card(case, rank)) is not None]
    if not found:
        return _in_libraries(case, cause)
    rank, seen, one = max(found, key=lambda each: each[2].share)
    frame, few = show(one.frame), one.owned < TWICE
    inner = show(seen.top_line(lambda stack: called_back(stack) == one.frame))
    at = f", mostly at {inner}" if inner != frame else ""
    sure = NOTED if few else CERTAIN if one.interpreted is not None else HIGH if one.owned < OWNED_LOOKS else CERTAIN
    return slow(
        case,
        cause,
        rank,
        lost=one.share,
        frame=one.frame,
        confidence=min(certainty(one.share), sure),
        decides_in_seconds=max(0.0, LATELY_SECONDS - seen.seconds) if few else 0.0,
        summary=f"Python that torch calls back within each step, {frame}, takes {one.share:.0%} of the time{at}",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                f"turns in loops of Python below {frame}",
                f"{one.share:.0%} of {seen.samples} samples; {one.owned} dumps with the GIL, {one.released} without",
                "arithmetic of torch, without the GIL",
            ),
        ),
        alternatives=(Alternative(cause="cpu_training", refuted_by="it is not torch that computes there"),),
        next=(f"write {frame} with tensors, without loops in Python, or let it look at fewer steps",),
    )


def _in_libraries(case: Case, cause: Cause) -> Finding | None:
    """Fires on hooks that compute in a library that is none of torch's (numpy, say), again and again."""
    for rank, seen in working(case):
        share = seen.share_where(_hooked_library)
        if share < LOST_SHARE or len(seen.runs(_hooked_library)) < RETURNS or _uses_a_card(case, rank):
            continue
        frame = seen.top_line(_hooked_library)
        return slow(
            case,
            cause,
            rank,
            lost=share,
            frame=frame,
            confidence=HIGH,
            summary=f"a hook that torch calls within each step computes {share:.0%} of the time, mostly at {show(frame)}, and not in torch",
            evidence=(
                in_samples(
                    case, rank, seen, "is in another library than torch below a hook", share, "arithmetic of torch"
                ),
            ),
            alternatives=(Alternative(cause="cpu_training", refuted_by="it is not torch that computes there"),),
            next=(f"let {show(frame)} look at fewer steps, or at less, or with tensors",),
        )
    return None


def _hooked_library(stack: Stack) -> bool:
    """True if a stack is in a library, neither torch's nor the standard one, that a hook of the program called."""
    path = callback_path(stack)
    if not path or is_user(path[0]) or is_standard(path[0]) or inner_tags(stack):
        return False
    return calls_back(stack.frames[stack.frames.index(path[-1]) + 1], path[-1], HOOK_CALLERS)


def _without_a_card(case: Case, rank: Member) -> CalledBack | None:
    """What is Python there, of a rank whose cards, if it has any, are given nothing to do: else they tell what it costs."""
    if _uses_a_card(case, rank):
        return None
    found = python_called_back(case, rank)
    return found if found is not None and found.is_python else None


def _uses_a_card(case: Case, rank: Member) -> bool:
    return any(card.kind != "idle" or card.returns for card in regimes(case.history, rank.pid, LATELY_SECONDS))


def workers_in_turn(case: Case, cause: Cause) -> Finding | None:
    """A rank waits for data whose makers wait for each other at a lock."""
    found = starving(case)
    locked = turns(case, found) if found is not None else None
    if found is None or locked is None:
        return None
    named = ", ".join(map(str, locked.holders))
    return found.finding(
        case,
        cause,
        ceiling=CERTAIN,
        summary=found.summary(case, f"waiting in turn for {locked.lock}, which one of them has at a time"),
        evidence=(
            case.saw(
                "lock", locked.lock, "is had by another worker", f"{locked.sightings} times, by pid {named}", "free"
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="most of the workers wait, one works"),),
        next=(locked.next,),
    )


RULES = (
    Rule(HOST_BOUND_PYTHON, host_bound_python),
    Rule(GARBAGE_COLLECTION, garbage_collection),
    Rule(DEBUG_APIS_ON, debug_apis_on),
    Rule(CONTENDED_LOCK, contended_lock),
)
