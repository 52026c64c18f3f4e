"""No step is made for a benign reason: start, evaluation, host computation, download, work of another thread."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

import msgspec

from perfwatch.triage.cards.accelerated import drives_a_card, sync_share
from perfwatch.triage.cards.gpu import polls
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import in_call
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.memory import computed, has_trained
from perfwatch.triage.moving.motion import gil_passed_at, motion
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES, SIGN_OF_LIFE, WORKS_BYTES
from perfwatch.triage.moving.within import begins_anew, turns_within
from perfwatch.triage.moving.work import passed, received, waited_on
from perfwatch.triage.patience import long_timeout, temporal
from perfwatch.triage.ranks.calls import exchange, leaves
from perfwatch.triage.ranks.groups import growing
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Line, Rule, Saw
from perfwatch.triage.rules.endless import unleft
from perfwatch.triage.rules.late_ranks import in_collective as is_in_collective
from perfwatch.triage.rules.late_ranks import late_in_each_step, meets_again, only_receives, trains_without
from perfwatch.triage.shares.budget import SYNCS, WORK, worker_budget
from perfwatch.triage.shares.data import producers, starving
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import (
    LATELY_SECONDS,
    MANY_TIMES,
    MINUTE_SECONDS,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    NOTABLE,
    NOW_SECONDS,
    TWICE,
)
from perfwatch.triage.shares.training import (
    clears,
    gathers,
    gathers_gradients,
    in_environment,
    makes_gradients,
    may_leave_early,
    prepares,
    prepares_natively,
    searches,
    training_loop,
    without_gradients,
)
from perfwatch.triage.slowness import FEW_SAMPLES, NOTED, PHASE_SECONDS, Phase, phases, repeated
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import NATIVE_WAIT
from perfwatch.triage.waits.other_end import sends
from perfwatch.triage.waits.threads import native_sockets
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, inner_tags, show
from perfwatch.verdict import Culprit, Finding, Level, Outcome
from perfwatch_probes.readings import Descriptor, Frame, ProcessUsage, Stack, Thread

STARTING = Cause("starting", "busy", "user_code", (Thread, Stack))
EVALUATING = Cause("evaluating", "busy", "user_code", (Thread, Stack))
COMPUTING_ON_HOST = Cause("computing_on_host", "busy", "user_code", (Thread, Stack))
DOWNLOADING = Cause("downloading", "busy", "network", (Thread, Descriptor))

LOADS = STARTING.line("""
    the program is still starting: imports, loading or initialisation
    - saw stack: imports, loads or initialises | {share:.0%} of {seen.samples} samples, {runs:.0%} of a core | training code
""")
RUNS_AT_START = STARTING.line("""
    the program is still starting: work before the first step
    - saw stack: runs, and has made no step | {runs:.0%} of a core, {seen.samples} samples | training code
""")
BETWEEN_STEPS = Line(COMPUTING_ON_HOST, "the program runs its own Python code between two steps", RUNS_AT_START.saw)
PREPARES = Line(
    STARTING, "the program runs its own Python code, before the first step or between two steps", RUNS_AT_START.saw
)


def starting(case: Case) -> Outcome:
    """Fires on a rank in imports, model loading or preparation before its first step."""
    for phase in phases(case):
        steps, rank = case.steps(phase.rank), phase.rank
        if steps is not None and steps.count > 0:
            continue
        if phase.runs < SIGN_OF_LIFE and phase.motion.distinct <= 1:
            continue
        share = phase.profile.share("import", "load", "init")
        if share >= MOSTLY:
            return phase.finding(case, LOADS, Level.CERTAIN, share=share)
        age = (case.job.members[rank.pid].process.age_seconds or 0.0) + case.at
        young = steps is not None and age < MINUTE_SECONDS and not phase.profile.seen("loader", "collective")
        if phase.runs > MOSTLY and young:
            return phase.finding(case, PREPARES, Level.MEDIUM)
        if phase.runs > SIGN_OF_LIFE and case.awaited_at_start(rank.pid):
            return phase.finding(case, RUNS_AT_START, Level.HIGH)
        if phase.runs > MOSTLY and prepares(case, rank) and not has_trained(case, rank):
            return phase.finding(case, PREPARES, Level.MEDIUM)
    return None


# One that stays where gradients are switched off cannot make any: a model is to be seen at all. Between its passes it may decode for long.
MODEL_SHARE, MODEL_SAMPLES = 0.003, 1.0
LONG = 10.0  # times the patience, or thirty times the longest step: until then it may well be over soon
EVALUATES = EVALUATING.line("""
    the model runs without backward or optimizer steps: {what} at {at}
    - saw stack: forward passes only | {share:.0%} of {seen.samples} samples, no backward, no optimizer | backward in each step
    - not skipping_steps: no guard is seen that leaves a loop that trains
""")
COLLECTS = EVALUATING.line("""
    it collects experience: its environment takes {lost:.0%} of the time, mostly at {at}{late}
    - saw stack: is in step() of its environment | {lost:.0%} of {seen.samples} samples | as much as the environment costs
    - next: {advice}
""")


def evaluating(case: Case) -> Outcome:
    """Fires on a rank with forward passes and neither backward nor optimizer, or one that mostly steps its environment."""
    for rank in case.ranks:
        seen, longer = case.profile(rank, PHASE_SECONDS), case.profile(rank, LATELY_SECONDS)
        seen = longer if seen.samples < FEW_SAMPLES or without_gradients(case.history, longer) else seen
        if seen.samples < FEW_SAMPLES or seen.share("compile", "import") > NOTABLE:
            continue
        moving = (pid for pid, one in case.progress.items() if one.kind == "moving" and pid != rank.pid)
        if trains_without(case, rank) or (only_receives(case, rank, seen) and any(moving)):
            continue  # that is its part, and those that train go on meanwhile
        thread, chain = case.progress[rank.pid].thread, case.chains[rank.pid]
        if turns_within(case.history, rank.pid, thread) is not None or polls(case.history, rank.pid):
            continue  # one forward pass, which may never end; or its card only waits for another rank
        if case.progress[rank.pid].kind == "still" and (len(chain.links) > 1 or in_call(case, chain)):
            continue  # it does not run: another one holds what it needs to go on in its forward pass, or has not come to it
        if found := _evaluates(case, rank, seen) or collects(case, rank):
            return in_time(case, rank, found)
    return None


def _evaluates(case: Case, rank: Member, seen: Profile) -> Finding | None:
    steps = case.progress[rank.pid].steps
    if seen.count(makes_gradients) or (
        steps is not None and steps.ago_seconds is not None and steps.ago_seconds < PHASE_SECONDS
    ):
        return None
    if searches(case.history, seen):
        return None  # it may train by what it writes
    launching = 1.0 - sync_share(case, seen)  # reading each result is a wait for the card most of the time
    environment = seen.share_where(in_environment(case.history, seen))
    forward = seen.share("forward") + environment
    enough, few = (MODEL_SHARE, MODEL_SAMPLES) if without_gradients(case.history, seen) else (MUCH, MANY_TIMES)
    if not seen.seen("forward") or forward < enough * launching or forward * seen.samples < few or len(seen.sights) < 4:
        return None
    line, share = show(seen.top_line()), seen.share("forward", "loader")
    what = "a rollout" if environment else "an evaluation"
    culprits = (Culprit(pid=rank.pid, rank=rank.rank, frame=line),)
    return EVALUATES.finding(case, culprits, _certainty(case, rank, seen), what=what, at=line, share=share, seen=seen)


def _certainty(case: Case, rank: Member, seen: Profile) -> float:
    """Less where a flag may decide on an evaluation in a loop that trains, or the line may stand in a loop that never ends."""
    if line_of(case.history, seen.top_line()) is None:
        return Level.MEDIUM
    if (loop := training_loop(case.history, seen)) is not None:
        return NOTED if may_leave_early(case, rank, loop) else Level.MEDIUM
    steps, around = case.steps(rank), loop_of(case.history, case.chains[rank.pid].start)
    ago = (steps.ago_seconds if steps is not None else None) or 0.0
    if seen.share_where(clears) or (around.may_turn_for_ever and ago > long_timeout(case)):
        return Level.MEDIUM
    return Level.HIGH if steps is None else Level.CERTAIN


def collects(case: Case, rank: Member) -> Finding | None:
    """That it does so, where most of its time is spent in there; None otherwise."""
    seen = case.profile(rank, LATELY_SECONDS)
    steps = in_environment(case.history, seen)
    share = seen.share_where(steps)
    if share < MOSTLY or not (seen.seen("forward") or computed(case, rank)):
        return None
    line, last = show(seen.top_line(steps)), _slowest_environment(case, rank, seen, steps)
    culprits: tuple[Culprit, ...] = (Culprit(pid=rank.pid, rank=rank.rank, frame=line),)
    late = ""
    advice = "if that is too much: run more environments in parallel processes, or make step() cheaper"
    if last is not None:
        pid, works_for, its_line = last
        culprits = (Culprit(pid=rank.pid, rank=rank.rank, worker_pid=pid, frame=its_line), *culprits)
        late = f"; it waits for process {pid}, which works {works_for:.0%} of the time, mostly at {its_line}"
        advice = f"look at {its_line}: the other environments finish first"
    return COLLECTS.finding(case, culprits, Level.HIGH, lost=share, at=line, seen=seen, late=late, advice=advice)


def _slowest_environment(
    case: Case, rank: Member, whole: Profile, steps: Callable[[Stack], bool]
) -> tuple[int, float, str] | None:
    """The one of several environments, each in a process of its own, for which the others are waited with: its share of work, its line.

    None where the environment is no process of its own, or they are done at about the same time.
    """
    receives = whole.share_where(lambda stack: steps(stack) and any_tag(inner_tags(stack), "mp_receive"))
    if receives < MOSTLY * whole.share_where(steps):
        return None
    pids = [pid for pid, _ in producers(case, rank) if pid != rank.pid and case.job.members[pid].role != "worker"]
    spent = {pid: worker_budget(case, pid, pid) for pid in pids}
    at_work = {
        pid: one.of(*WORK).where(lambda stack: not any_tag(inner_tags(stack), "mp_receive", "mp_send"))
        for pid, one in spent.items()
        if one.seen.samples
    }
    shares = {pid: one.samples / spent[pid].seen.samples for pid, one in at_work.items()}
    if len(shares) < 2:
        return None
    others, last = sorted(shares, key=lambda pid: shares[pid])[-2:]
    line = show(at_work[last].top_line())
    if shares[last] < MOSTLY or shares[last] < TWICE * shares[others] or line is None:
        return None
    return last, shares[last], line


COMPUTES = COMPUTING_ON_HOST.line("""
    {what}[: {text}]
    - saw thread: computes | {runs:.0%} of a core in the thread, {cpu:.1f} cores in the process | 0 in a hang
    - saw gil: has released the GIL | {owner} | an owner would block others
""")


def computing_on_host(case: Case) -> Outcome:
    """Fires on a rank that computes in native code below one line, while no collective goes on."""
    if (gathered := gathering(case)) is not None:
        return gathered
    if growing(case) or any(meets_again(case, rank, NOW_SECONDS) for rank in case.ranks):
        return None  # the ranks meet in between: it is late, not long
    found = (_of_phase(case, phase) for phase in phases(case))
    return next((one for one in found if one is not None), None) or _between_steps(case)


def _between_steps(case: Case) -> Finding | None:
    """Work of its own in Python, in loops that come to an end, of a rank that has trained before."""
    for phase in phases(case):
        if phase.runs > MOSTLY and prepares(case, phase.rank) and has_trained(case, phase.rank):
            return phase.finding(case, BETWEEN_STEPS, Level.MEDIUM)
    return None


def _of_phase(case: Case, phase: Phase) -> Finding | None:
    chain = case.chains[phase.rank.pid]
    loop = loop_of(case.history, chain.end.node).library  # which may turn for ever
    if begins_anew(case.history, phase.rank.pid, phase.tid) is not None:
        return None  # what computes there comes to its end, and for nothing
    if not _runs_natively(case, phase, chain, loop):
        return None
    cpu = case.history.rate(ProcessUsage, phase.rank.pid, of=lambda u: u.cpu_seconds, seconds=6.0) or 0.0
    most = phase.profile.lines().most_common(1)
    one_line = bool(most) and most[0][1] / phase.profile.samples >= NEARLY_ALL
    source = line_of(case.history, phase.profile.top_line())
    if max(cpu, phase.runs) < MOSTLY or not (one_line or prepares_natively(case, phase.rank)):
        return None
    waits = exchange(case, chain) is not None
    syncs = source is not None and bool(names(source.calls) & SYNCS)  # the kernel writes to a disk
    if syncs or (waits and not all(rank.alive for rank in case.job.ranks)):
        return None
    what = "a long native computation runs" + ("" if one_line else " in many calls")
    what = f"a library loop runs, {show(loop)}" if loop is not None else what
    what = "an MPI exchange runs, or waits for other ranks" if waits else what
    facts = Facts(what=what, text=source.text.strip()[:80] if source else None, cpu=cpu)
    seen = "never seen holding it" if one_line else "seen without it most of the time"
    facts |= Facts(owner=seen if chain.end.kind == "native" else "releases it now and then")
    return phase.finding(case, COMPUTES, ONE_SOURCE if waits else _certain(case, phase, one_line, loop), **facts)


def _runs_natively(case: Case, phase: Phase, chain: Chain, loop: Frame | None) -> bool:
    """True if it is the training thread itself that runs, in native code or a library's loop, and for no batch, model or card."""
    passes = gil_passed_at(case.history, phase.rank.pid, phase.tid) > -inf  # a call that keeps the GIL, and comes back
    runs = chain.end.kind == "native" or (chain.end.kind == "python" and (loop is not None or passes))
    if not runs or chain.end.node.tid != chain.start.tid or phase.profile.seen("loader_wait", "collective"):
        return False
    evaluates = phase.profile.share("forward") > MUCH
    return not (evaluates or drives_a_card(case, phase))


def _certain(case: Case, phase: Phase, one_line: bool, loop: Frame | None) -> float:
    """High where that line can wait for no other rank: all ranks are here, and where the rank may have a card its text is known.

    One that fetches items, or reads and writes, may only be slow.
    """
    read = line_of(case.history, phase.profile.top_line()) is not None
    # Else it may spin in a call with a rank that has ended.
    lives = case.job.covered and all(rank.alive for rank in case.job.ranks)
    told = lives and (read or not cards_of(case.history, phase.rank.pid).uuids)
    meets = any(map(leaves, case.chains.values())) or phase.profile.turns(partial(is_in_collective, case))
    returns = phase.profile.seen("fetch") or (phase.motion.io_calls or 0) >= MANY_TIMES
    return Level.HIGH if one_line and loop is None and told and not (meets or returns) else Level.MEDIUM


GATHERS = COMPUTING_ON_HOST.line("""
    it reads its data without training on it: the loop at {at} only inspects each batch
    - saw stack: takes batches without training on them | {seen.samples} samples, no pass of a model | a step for each
    - not starved_by_transforms: the loop makes no step by its text
""")


SUMS_GRADIENTS = replace(
    GATHERS,
    summary="it runs backward passes without updating the model: the loop at {at} only accumulates gradients",
    saw=(Saw("stack", "computes gradients, no update", "{lost:.0%} of {seen.samples} samples", "a step for each"),),
    but=(("skipping_steps", "by its text the loop makes no step"),),
)


def gathering(case: Case) -> Finding | None:
    """Fires on a rank that goes through its data for statistics, or for gradients of which it makes no steps."""
    for rank in case.ranks:
        now, loop = case.progress[rank.pid], gathers(case, rank)
        line, loop = (GATHERS, loop) if loop is not None else (SUMS_GRADIENTS, gathers_gradients(case, rank))
        comes = now.kind != "still" or motion(case.history, rank.pid, now.thread).frozen is False
        if comes and loop is not None:
            culprits = (Culprit(pid=rank.pid, rank=rank.rank, frame=show(loop)),)
            facts = Facts(at=show(loop), seen=case.profile(rank, LATELY_SECONDS), lost=1.0)
            return line.finding(case, culprits, Level.MEDIUM, **facts)
    return None


# fewer are the signs of life of a connection that is kept open; the slowest drill gets 8,000 a second
LEAST_BYTES = 512
ARRIVES = DOWNLOADING.line("""
    a download is running[ at {line}]: {kib:,.0f} KiB arrived while perfwatch watched
    - saw socket: bytes arrive | {arrived:,} bytes | 0 in a hang
    - saw stack: waits for the network | [{line}] | training code
""")
Files = frozenset[tuple[int, int]]


def downloading(case: Case) -> Outcome:
    """Fires on a rank that makes no step while bytes arrive on the socket that it waits for."""
    fed = starving(case)
    for rank in case.ranks:
        now, chain, recent = case.progress[rank.pid], case.chains[rank.pid], case.profile(rank, PHASE_SECONDS)
        if (fed is not None and fed.rank.pid == rank.pid) or (now.kind == "moving" and now.steps is not None):
            continue  # batch after batch comes, however slowly
        if sends(chain.end) is not None or "remote_get" in chain.end.node.inner:
            continue  # a thread that sends downloads nothing; what a cluster makes comes through its own store: these are heartbeats
        if chain.end.kind not in ("network", NATIVE_WAIT) and not recent.share("http", "ssl"):
            continue
        own, behind, every = _own(case, chain), _behind(case, chain), frozenset(case.history.of(Descriptor, rank.pid))
        arrived = _arrived(case, own | behind or every)
        if arrived < LEAST_BYTES or recent.seen("optimizer", "backward"):
            continue
        if _arrived(case, own) < LEAST_BYTES and _trickles(case, behind or every):
            continue
        if late_in_each_step(case, rank):
            continue  # what it trains on in the next step
        line = show(recent.top_line())
        culprits = (Culprit(pid=rank.pid, rank=rank.rank, frame=line),)
        sure = repeated(case, recent.top_line(), Level.CERTAIN if own | behind else Level.MEDIUM)
        facts = Facts(line=line, arrived=arrived, kib=arrived / 2**10)
        return ARRIVES.finding(case, culprits, sure, **facts)
    return None


def _own(case: Case, chain: Chain) -> Files:
    """The descriptors, by process, that the thread and the end of its wait chain were seen to wait on."""
    waits = {(node.pid, node.tid) for node in (chain.start, chain.end.node)}
    return frozenset((pid, fd) for pid, tid in waits for fd in waited_on(case.history, pid, tid, LATELY_SECONDS))


def _behind(case: Case, chain: Chain) -> Files:
    """Those of the native threads of one that waits in native code."""
    pid = chain.end.node.pid
    fds = native_sockets(case.history, pid, LATELY_SECONDS) if chain.end.kind == NATIVE_WAIT else ()
    return frozenset((pid, fd) for fd in fds)


def _arrived(case: Case, files: Files) -> int:
    """Bytes that came there from outside of the job, or from a process of its own that sends many: a few are mere answers."""
    return sum(passed(case.history, *key, LATELY_SECONDS) for key in files if _is_source(case, *key))


def _trickles(case: Case, files: Files) -> bool:
    """True if what arrives there is as little as what keeps the connections of a store alive."""
    outside = [key for key in files if _is_source(case, *key)]
    rates = (case.history.rate(Descriptor, *key, of=received, seconds=LATELY_SECONDS) for key in outside)
    return sum(rate or 0.0 for rate in rates) < WORKS_BYTES


def _is_source(case: Case, pid: int, fd: int) -> bool:
    seen = case.history.latest(Descriptor, pid, fd)
    socket = seen.reading.socket if seen is not None else None
    if socket is None or not case.job.members.keys() & socket.peer_pids:
        return socket is not None
    return (case.history.rate(Descriptor, pid, fd, of=received, seconds=LATELY_SECONDS) or 0.0) >= ARRIVING_BYTES


def in_time(case: Case, rank: Member, found: Finding) -> Finding:
    """The finding, less sure where no step came for long; a mere note where it does not leave a loop that need not end."""
    steps, loop = case.steps(rank), unleft(case, rank)
    ago = (steps.ago_seconds if steps is not None else None) or 0.0
    if loop is not None and loop.doubted:
        return msgspec.structs.replace(found, confidence=min(NOTED, found.confidence))
    if ago < LONG * temporal(case):
        return found
    said = f"{found.summary}; no step for {ago / 60:.0f} min: is the data that it iterates over finite?"
    return msgspec.structs.replace(found, confidence=min(Level.MEDIUM, found.confidence), summary=said)


RULES = (
    Rule(STARTING, starting),
    Rule(EVALUATING, evaluating),
    Rule(COMPUTING_ON_HOST, computing_on_host),
    Rule(DOWNLOADING, downloading),
)
