"""No step is made for a benign reason: start, evaluation, host computation, download, work of another thread."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from perfwatch.triage.busy import MOVES_SHARE, WINDOW_SECONDS, Phase, phases
from perfwatch.triage.cards.accelerated import drives_a_card, sync_share
from perfwatch.triage.cards.gpu import polls
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.thresholds import COUNTS_TIMES
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.memory import computed
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.thresholds import WORKS_BYTES
from perfwatch.triage.moving.unleft import unleft
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.moving.work import passed, received, waited_on
from perfwatch.triage.patience import temporal
from perfwatch.triage.ranks.calls import exchange, in_collective, leaves
from perfwatch.triage.ranks.groups import growing
from perfwatch.triage.ranks.lateness import LATELY_SECONDS as MEETING_SECONDS
from perfwatch.triage.ranks.lateness import in_collective as is_in_collective
from perfwatch.triage.ranks.lateness import meets_again, only_receives, trains_without
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.data_makers import producers, works
from perfwatch.triage.shares.preparing import prepares, prepares_natively
from perfwatch.triage.shares.profile import Profile, lasting
from perfwatch.triage.shares.saving import SYNCS, comes_back
from perfwatch.triage.shares.starving import starving
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    HIGH,
    LATELY_SECONDS,
    MEDIUM,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    NOTABLE,
)
from perfwatch.triage.shares.training import clears, may_leave_early, training_loop, trains, without_gradients
from perfwatch.triage.shares.without_steps import gathers, in_environment
from perfwatch.triage.slowness import FEW_SAMPLES, NOTED, in_samples
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.native_waits import native_sockets
from perfwatch.triage.waits.node import NATIVE_WAIT
from perfwatch.triage.waits.other_end import sends
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, inner_tags, show
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import Descriptor, Frame, ProcessUsage, Stack, Thread

STARTING = Cause("starting", "busy", "user_code", (Thread, Stack))

YOUNG_SECONDS = 120.0


def starting(case: Case) -> Outcome:
    """Fires on a rank in imports, model loading or preparation before its first step."""
    for phase in phases(case):
        steps = case.steps(phase.rank)
        if steps is not None and steps.count > 0:
            continue
        share = phase.profile.share("import", "load", "init")
        if share >= MOSTLY:
            confidence = CERTAIN
        elif phase.runs > MOSTLY and _young(case, phase) and not phase.profile.seen("loader", "collective"):
            confidence = MEDIUM
        elif phase.runs > MOVES_SHARE and case.awaited_at_start(phase.rank.pid):
            confidence = HIGH
        elif phase.runs > MOSTLY and prepares(case, phase.rank):
            confidence = MEDIUM
        else:
            continue
        if phase.runs < MOVES_SHARE and phase.motion.distinct <= 1:
            continue
        what = "imports, loading or initialisation" if share >= MOSTLY else "work before the first step"
        return phase.finding(
            STARTING,
            "the program prepares: work of its own in Python, before the first step or between two"
            if confidence == MEDIUM
            else f"the program is still starting: {what}",
            confidence,
            (_evidence(case, phase, share),),
        )
    return None


def _evidence(case: Case, phase: Phase, share: float) -> Evidence:
    """What its stacks show: frames of imports and loading, or merely that it runs."""
    loads, runs = share >= MOSTLY, f"{phase.runs:.0%} of a core"
    return case.saw(
        "stack",
        f"pid {phase.rank.pid}",
        "imports, loads or initialises" if loads else "runs, and has made no step",
        f"{share:.0%} of {phase.profile.samples} samples, {runs}"
        if loads
        else f"{runs}, {phase.profile.samples} samples",
        "training code",
    )


def _young(case: Case, phase: Phase) -> bool:
    """True if the agent counts, has counted nothing yet, and the process began a moment ago."""
    process = case.job.members[phase.rank.pid].process
    return case.steps(phase.rank) is not None and (process.age_seconds or 0.0) + case.at < YOUNG_SECONDS


EVALUATING = Cause("evaluating", "busy", "user_code", (Thread, Stack))

FEW_FORWARD = 6.0  # ... and so many: a training thread would have been seen at backward, too
# One that stays where gradients are switched off cannot make any: a model is to be seen at all. Between its passes it may decode for long.
MODEL_SHARE, MODEL_SAMPLES = 0.003, 1.0
# The source of the line was not read: it may stand in a loop that never ends. Or it does stand in one, and no step came for long.
# By its text the loop trains, or it clears gradients: a flag may say that it evaluates, or it is left before backward.


def evaluating(case: Case) -> Outcome:
    """Fires on a rank with forward passes and neither backward nor optimizer, or one that mostly steps its environment."""
    for rank in case.ranks:
        seen = _lately(case, rank)
        if seen.samples < FEW_SAMPLES or seen.share("compile", "import") > NOTABLE:
            continue
        moving = (pid for pid, one in case.progress.items() if one.kind == "moving" and pid != rank.pid)
        if trains_without(case, rank) or (only_receives(case, rank, seen) and any(moving)):
            continue  # that is its part, and those that train go on meanwhile
        if turns_within(case.history, rank.pid, case.progress[rank.pid].thread) is not None or polls(
            case.history, rank.pid
        ):
            continue  # one forward pass, which may never end; or its card only waits for another rank
        chain = case.chains[rank.pid]
        if case.progress[rank.pid].kind == "still" and (len(chain.links) > 1 or in_collective(case, chain)):
            continue  # it does not run: another one holds what it needs to go on in its forward pass, or has not come to it
        if found := _evaluates(case, rank, seen) or collects(case, EVALUATING, rank):
            return in_time(case, rank, found)
    return None


def _evaluates(case: Case, rank: Member, seen: Profile) -> Finding | None:
    steps = case.progress[rank.pid].steps
    if trains(seen):
        return None
    if steps is not None and steps.ago_seconds is not None and steps.ago_seconds < WINDOW_SECONDS:
        return None
    if not seen.seen("forward"):
        return None
    share = seen.share("forward", "loader")
    launching = 1.0 - sync_share(case, seen)  # reading each result is a wait for the card most of the time
    environment = seen.share_where(in_environment(case.history, seen))
    forward = seen.share("forward") + environment
    enough, few = (MODEL_SHARE, MODEL_SAMPLES) if without_gradients(case.history, seen) else (MUCH, FEW_FORWARD)
    if forward < enough * launching or forward * seen.samples < few or len(seen.sights) < 4:
        return None
    line = show(seen.top_line())
    what = "a rollout" if environment else "an evaluation"
    return Finding(
        cause=EVALUATING.name,
        state="busy",
        summary=f"the model runs without backward or optimizer steps: {what} at {line}",
        confidence=_certainty(case, rank, seen),
        owner=EVALUATING.owner,
        culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=line),),
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "forward passes only",
                f"{share:.0%} of {seen.samples} samples, no backward, no optimizer",
                "backward in each step",
            ),
        ),
        alternatives=(
            Alternative(cause="skipping_steps", refuted_by="no guard is seen that leaves a loop that trains"),
        ),
    )


def _lately(case: Case, rank: Member) -> Profile:
    seen, longer = case.profile(rank, WINDOW_SECONDS), case.profile(rank, LATELY_SECONDS)
    return longer if seen.samples < FEW_SAMPLES or without_gradients(case.history, longer) else seen


def _certainty(case: Case, rank: Member, seen: Profile) -> float:
    if line_of(case.history, seen.top_line()) is None:
        return MEDIUM
    if (loop := training_loop(case.history, seen)) is not None:
        return NOTED if may_leave_early(case, rank, loop) else MEDIUM
    if seen.share_where(clears):
        return MEDIUM
    steps, around = case.steps(rank), loop_of(case.history, case.chains[rank.pid].start)
    ago = (steps.ago_seconds if steps is not None else None) or 0.0
    if around.may_turn_for_ever and ago > COUNTS_TIMES * temporal(case):
        return MEDIUM
    return HIGH if steps is None else CERTAIN


LATER = 2.0  # share of the time that the last one works, and how many times that of each other


@dataclass(frozen=True)
class SlowestEnvironment:
    """The one of several environments, each in a process of its own, for which the others are waited with."""

    pid: int
    share: float
    line: str


def collects(case: Case, cause: Cause, rank: Member) -> Finding | None:
    """That it does so, where most of its time is spent in there; None otherwise."""
    seen = case.profile(rank, LATELY_SECONDS)
    steps = in_environment(case.history, seen)
    share = seen.share_where(steps)
    if share < MOSTLY or not (seen.seen("forward") or computed(case, rank)):
        return None
    line, last = show(seen.top_line(steps)), _slowest_environment(case, rank, seen, steps)
    late = (
        f"; it waits for process {last.pid}, which works {last.share:.0%} of the time, mostly at {last.line}"
        if last
        else ""
    )
    return Finding(
        cause=cause.name,
        state="busy",
        summary=f"it collects experience: its environment takes {share:.0%} of the time, mostly at {line}" + late,
        confidence=HIGH,
        owner=cause.owner,
        culprits=(
            *([Culprit(pid=rank.pid, rank=rank.rank, worker_pid=last.pid, frame=last.line)] if last else []),
            Culprit(pid=rank.pid, rank=rank.rank, frame=line),
        ),
        evidence=(
            in_samples(case, rank, seen, "is in step() of its environment", share, "as much as the environment costs"),
        ),
        next=(
            f"look at {last.line}: the other environments are done before it"
            if last
            else "if that is too much: more environments at a time, in processes of their own, or a cheaper step()",
        ),
    )


def _slowest_environment(
    case: Case, rank: Member, whole: Profile, steps: Callable[[Stack], bool]
) -> SlowestEnvironment | None:
    """None where the environment is no process of its own, or they are done at about the same time."""
    receives = whole.share_where(lambda stack: steps(stack) and any_tag(inner_tags(stack), "mp_receive"))
    if receives < MOSTLY * whole.share_where(steps):
        return None
    pids = [pid for pid, _ in producers(case, rank) if pid != rank.pid and case.job.members[pid].role != "worker"]
    seen = {pid: lasting(case.history, pid, pid, LATELY_SECONDS) for pid in pids}
    shares = {pid: one.share_where(_at_work) for pid, one in seen.items() if one.samples}
    if len(shares) < 2:
        return None
    last = max(shares, key=lambda pid: shares[pid])
    others = max(share for pid, share in shares.items() if pid != last)
    if shares[last] < MOSTLY or shares[last] < LATER * others:
        return None
    line = show(seen[last].top_line(_at_work))
    return SlowestEnvironment(last, shares[last], line) if line is not None else None


def _at_work(stack: Stack) -> bool:
    return works(stack) and not any_tag(inner_tags(stack), "mp_receive", "mp_send")


COMPUTING_ON_HOST = Cause("computing_on_host", "busy", "user_code", (Thread, Stack))


def computing_on_host(case: Case) -> Outcome:
    """Fires on a rank that computes in native code below one line, while no collective goes on."""
    if growing(case) or any(meets_again(case, rank, MEETING_SECONDS) for rank in case.ranks):
        return None  # the ranks meet in between: it is late, not long
    for phase in phases(case):
        if (found := _of_phase(case, phase)) is not None:
            return found
    return gathering(case, COMPUTING_ON_HOST)


def _of_phase(case: Case, phase: Phase) -> Finding | None:
    chain = case.chains[phase.rank.pid]
    loop = loop_of(case.history, chain.end.node).library  # which may turn for ever
    if not _runs_natively(case, phase, chain, loop):
        return None
    cpu = case.history.rate(ProcessUsage, phase.rank.pid, of=lambda u: u.cpu_seconds, seconds=6.0) or 0.0
    one_line = _one_line(phase)
    if max(cpu, phase.runs) < MOSTLY or not (one_line or prepares_natively(case, phase.rank)):
        return None
    source = line_of(case.history, phase.profile.top_line())
    if source is not None and names(source.calls) & SYNCS:
        return None  # the kernel writes to a disk
    waits = exchange(case, chain) is not None
    if waits and not all(rank.alive for rank in case.job.ranks):
        return None
    what = "an exchange of MPI runs, or waits for other ranks" if waits else _what(one_line, loop)
    pid, owner = f"pid {phase.rank.pid}", "never seen to own it" if one_line else "seen without it most of the time"
    runs = f"{phase.runs:.0%} of a core in the thread, {cpu:.1f} cores in the process"
    return phase.finding(
        COMPUTING_ON_HOST,
        what + (f": {source.text.strip()[:80]}" if source else ""),
        ONE_SOURCE if waits else _certain(case, phase, one_line, loop),
        (
            case.saw("thread", pid, "computes", runs, "0 would mean a hang"),
            case.saw("gil", pid, "has released the GIL", owner, "an owner would block others"),
        ),
    )


def _runs_natively(case: Case, phase: Phase, chain: Chain, loop: Frame | None) -> bool:
    """True if it is the training thread itself that runs, in native code or a library's loop, and for no batch, model or card."""
    runs = chain.end.kind == "native" or (chain.end.kind == "python" and loop is not None)
    if not runs or chain.end.node.tid != chain.start.tid or phase.profile.seen("loader_wait", "collective"):
        return False
    evaluates = phase.profile.share("forward") > MUCH
    return not (evaluates or drives_a_card(case, phase) or comes_back(case, phase.rank, phase.profile))


def _certain(case: Case, phase: Phase, one_line: bool, loop: Frame | None) -> float:
    if not one_line:
        return MEDIUM
    left = any(leaves(chain) for chain in case.chains.values())
    meets = left or phase.profile.turns(partial(is_in_collective, case))
    return HIGH if loop is None and _told(case, phase) and not meets else MEDIUM


def _told(case: Case, phase: Phase) -> bool:
    """True if that line can wait for no other rank: all ranks are here, and where the rank may have a card its text is known."""
    read = line_of(case.history, phase.profile.top_line()) is not None
    return case.job.covered and (read or not cards_of(case.history, phase.rank.pid).uuids)


def _what(one_line: bool, loop: Frame | None) -> str:
    if loop is not None:
        return f"a loop of a library turns, {show(loop)}"
    return "a long native computation runs" + ("" if one_line else " in many calls")


def _one_line(phase: Phase) -> bool:
    lines = phase.profile.lines()
    return bool(lines) and lines.most_common(1)[0][1] / phase.profile.samples >= NEARLY_ALL


DOWNLOADING = Cause("downloading", "busy", "network", (Thread, Descriptor))

LEAST_BYTES = (
    512  # fewer are the signs of life of a connection that is kept open; the slowest drill gets 8,000 a second
)


def downloading(case: Case) -> Outcome:
    """Fires on a rank that makes no step while bytes arrive on the socket that it waits for."""
    fed = starving(case)
    for rank in case.ranks:
        if fed is not None and fed.rank.pid == rank.pid:
            continue  # batch after batch comes, however slowly
        now = case.progress[rank.pid]
        if now.kind == "moving" and now.steps is not None:
            continue
        chain = case.chains[rank.pid]
        recent = case.profile(rank, 6.0)
        if sends(chain.end) is not None or "remote_get" in chain.end.node.inner:
            continue  # a thread that sends downloads nothing; what a cluster makes comes through its own store: these are heartbeats
        if chain.end.kind not in ("network", NATIVE_WAIT) and not recent.share("http", "ssl"):
            continue
        own, behind = _own(case, chain), _behind(case, chain)
        arrived = _arrived(case, own | behind or _all(case, rank.pid))
        if arrived < LEAST_BYTES or recent.seen("optimizer", "backward"):
            continue
        if _arrived(case, own) < LEAST_BYTES and _trickles(case, behind or _all(case, rank.pid)):
            continue
        line = show(recent.top_line())
        return Finding(
            cause=DOWNLOADING.name,
            state="busy",
            summary=f"something is being downloaded{' at ' + line if line else ''}: {arrived / 2**10:,.0f} KiB arrived meanwhile",
            confidence=repeated(case, recent.top_line(), CERTAIN if own | behind else MEDIUM),
            owner=DOWNLOADING.owner,
            culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=line),),
            evidence=(
                case.saw("socket", f"pid {rank.pid}", "bytes arrive", f"{arrived:,} bytes", "0 would mean a hang"),
                case.saw("stack", f"pid {rank.pid}", "waits for the network", line or "?", "training code"),
            ),
        )
    return None


def _own(case: Case, chain: Chain) -> frozenset[tuple[int, int]]:
    """The descriptors, by process, that the thread and the end of its wait chain were seen to wait on."""
    waits = {(node.pid, node.tid) for node in (chain.start, chain.end.node)}
    return frozenset((pid, fd) for pid, tid in waits for fd in waited_on(case.history, pid, tid, LATELY_SECONDS))


def _behind(case: Case, chain: Chain) -> frozenset[tuple[int, int]]:
    """Those of the native threads of one that waits in native code."""
    pid = chain.end.node.pid
    fds = native_sockets(case.history, pid, LATELY_SECONDS) if chain.end.kind == NATIVE_WAIT else ()
    return frozenset((pid, fd) for fd in fds)


def _all(case: Case, pid: int) -> frozenset[tuple[int, int]]:
    return frozenset(case.history.of(Descriptor, pid))


def _arrived(case: Case, files: frozenset[tuple[int, int]]) -> int:
    """Bytes that came there from outside of the job: one of its own processes that answers downloads nothing by that."""
    return sum(passed(case.history, *key, LATELY_SECONDS) for key in files if _from_outside(case, *key))


def _trickles(case: Case, files: frozenset[tuple[int, int]]) -> bool:
    """True if what arrives there is as little as what keeps the connections of a store alive."""
    outside = [key for key in files if _from_outside(case, *key)]
    rates = (case.history.rate(Descriptor, *key, of=received, seconds=LATELY_SECONDS) for key in outside)
    return sum(rate or 0.0 for rate in rates) < WORKS_BYTES


def _from_outside(case: Case, pid: int, fd: int) -> bool:
    seen = case.history.latest(Descriptor, pid, fd)
    socket = seen.reading.socket if seen is not None else None
    return socket is not None and not case.job.members.keys() & socket.peer_pids


LONG = 10.0  # times the patience, or thirty times the longest step: until then it may well be over soon
TRAINS = frozenset("backward step zero_grad forward fit train train_step training_step".split())


def in_time(case: Case, rank: Member, found: Finding) -> Finding:
    """The finding, less sure where no step came for long; a mere note where it does not leave a loop that need not end."""
    steps, loop = case.steps(rank), unleft(case, rank)
    ago = (steps.ago_seconds if steps is not None else None) or 0.0
    if loop is not None and loop.doubted:
        return msgspec.structs.replace(found, confidence=min(NOTED, found.confidence))
    if ago < LONG * temporal(case):
        return found
    said = f"{found.summary}; no step for {ago / 60:.0f} min: does what it goes through have an end?"
    return msgspec.structs.replace(found, confidence=min(MEDIUM, found.confidence), summary=said)


def repeated(case: Case, frame: Frame | None, confidence: float) -> float:
    """The confidence in a save or a download, less where its line turns in a ``while`` loop in which nothing trains.

    It may be tried again and again, and fail or be found wanting each time.
    """
    line = line_of(case.history, frame)
    alone = line is not None and line.loops[:1] == ("while",) and not line.calls_unnamed
    return min(MEDIUM, confidence) if alone and line and names(line.loop_calls).isdisjoint(TRAINS) else confidence


def gathering(case: Case, cause: Cause) -> Finding | None:
    """What is said of a rank that does."""
    for rank in case.ranks:
        now, loop = case.progress[rank.pid], gathers(case, rank)
        comes = now.kind != "still" or motion(case.history, rank.pid, now.thread).frozen is False
        if comes and loop is not None:
            return _gathers(case, cause, rank, loop)
    return None


def _gathers(case: Case, cause: Cause, rank: Member, loop: Frame) -> Finding:
    seen = case.profile(rank, LATELY_SECONDS)
    return Finding(
        cause=cause.name,
        state=cause.state,
        summary=f"it goes through its data and trains on none of it: the loop at {show(loop)} only looks at each batch",
        confidence=MEDIUM,
        owner=cause.owner,
        culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=show(loop)),),
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "takes batches, and trains on none",
                f"{seen.samples} samples, no pass of a model",
                "a step for each",
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="the loop makes no step by its text"),),
    )


RULES = (
    Rule(STARTING, starting),
    Rule(EVALUATING, evaluating),
    Rule(COMPUTING_ON_HOST, computing_on_host),
    Rule(DOWNLOADING, downloading),
)
