"""Training makes no steps, or slower ones than before."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import restarts
from perfwatch.triage.history import PARTS, History, grows, median, quantile
from perfwatch.triage.moving.loops import sizes_of
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.progress import LONGER, StepClock, evaluated
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.rules.machine import delay_share, taken_by_others
from perfwatch.triage.shares import training
from perfwatch.triage.shares.budget import Bin, Budget, budget, is_in, trained_for, worker_budget
from perfwatch.triage.shares.data import discarded, starving
from perfwatch.triage.shares.own_work import calls_at, lines_around
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    FEW_TIMES,
    LATELY_SECONDS,
    MANY_SAMPLES,
    MANY_TIMES,
    MINUTE_SECONDS,
    MOST,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    NOTABLE,
    NOW_SECONDS,
    RUN_SECONDS,
    SEVERAL_TIMES,
    TWICE,
)
from perfwatch.triage.slowness import NOTED, certainty, is_at, slow, worst
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import asks_for_an_update, line_of, next_try_seconds
from perfwatch.triage.words.frames import any_tag, inner_tags, short_name, show, tags, user_frame, user_frames
from perfwatch.verdict import Culprit, Finding, Level, Outcome
from perfwatch_probes.readings import COUNT, Frame, ProcessUsage, Stack, Steps, Thread

SKIPPING_STEPS = Cause("skipping_steps", "slow", "user_code", (Stack,))
REGRESSED = Cause("regressed", "slow", "unknown", (Steps,))

# Times the longest step so far, or the most passes between two updates; and where nothing that goes with a step is seen: a wrapper may
# accumulate gradients over more passes than before, as Accelerate's does, and its text does not show it.
FAR_LONGER = 30.0
# Samples of a step that are due by what goes with it, or by the share of updates before: one that is made would be missed with
# e**-2.5, and with e**-5. Beside so many one sample elsewhere is no update.
COMPANIONS, MANY_COMPANIONS = 2.5, 5.0

SKIPS = SKIPPING_STEPS.line("""
    the loop runs but the optimizer makes no step: at least {turns} backward passes in {seen.seconds:time}, no update[{elsewhere:if}, at
    lines where no step was made before]
    - saw stack: backward without an optimizer step | {turns} passes, {beside:.1f} samples of a step expected, none seen, of
      {seen.samples} | one step per pass
    - saw steps if counted: the count stands still | {counted} | grows
    - not evaluating: backward passes run
    - next: look at what the guard tests: a loss or gradients that are NaN, infinite or too large
    - next: lower the learning rate
""")
LEAVES = SKIPPING_STEPS.line("""
    the loop runs but makes no update: {why}, at {at}
    - saw stack: forward passes only, in a loop that trains | {forward:.0%} of {seen.samples} samples, {cleared} where gradients are
      cleared, none in backward or a step | backward each time
    - not evaluating: by its text the loop trains, and {does}
    - next: look at what the guard tests: a loss or gradients that are NaN, infinite or too large
    - next: lower the learning rate
""")
ASKED_IN_VAIN = SKIPPING_STEPS.line("""
    the optimizer is called, but no gradients are computed: {at} returns before the backward pass
    - saw stack: forward passes that an optimizer's step asked for | {asked} of {since.samples} samples, none in a backward pass |
      backward in each step
    - not evaluating: an optimizer asks for these passes
    - next: look at what the guard tests: a loss or gradients that are NaN, infinite or too large
    - next: lower the learning rate
""")
TESTED = "check the condition that a batch must meet before training: no batch meets it"
DROPS = SKIPPING_STEPS.line("""
    no step for {found.seconds:time}: about {found.batches} batches have arrived since and were dropped at {at}
    - saw loader: batches are taken | about {found.batches} more batches were requested in {found.seconds:time} |
      a step for each
    - saw stack: none is trained on | {found.seen.samples} samples, none in a forward pass, a backward pass or the optimizer | training
      code after each batch
    - saw steps if counted: the count stands still | {counted} | grows
    - not starved_by_transforms: batches come, and no step is made of them
    - next: check the condition that a batch must meet before training: no batch meets it
""")
MAY_RESUME = (TESTED, "a run that was resumed skips what it has trained on before: then this ends")


def skipping_steps(case: Case) -> Outcome:
    """Fires on backward passes without an optimizer step, and on steps without a backward pass."""
    for rank in case.ranks:
        steps = case.steps(rank)
        since = LATELY_SECONDS if steps is None or steps.ago_seconds is None else min(LATELY_SECONDS, steps.ago_seconds)
        seen = case.profile(rank, since)
        rests = steps is None or _silent(case, rank, steps) > _longest_step(steps)
        if rests and seen.samples >= MANY_SAMPLES and (found := leaves_early(case, rank, seen)):
            return found
        if found := makes_no_gradients(case, rank) or throws_away(case, rank):
            return found
        if seen.samples < MANY_SAMPLES:
            continue
        if seen.turns(_backward) >= MANY_TIMES and (found := _without_update(case, rank, seen, steps, rests)):
            return found
    return None


def _backward(stack: Stack) -> bool:
    return training.in_backward(stack) and not training.updates(stack)


def _without_update(case: Case, rank: Member, seen: Profile, steps: StepClock | None, rests: bool) -> Finding | None:
    """A finding if no step goes with the backward passes of a rank; ``rests``: none came for longer than usual, or none is counted."""
    beside, awaited, vanished = due(case, rank, seen), 0.0, False
    if not beside and accumulates(case.history, seen):
        return (
            None  # a round may be longer than those before, and only a step that is due clears gradients or clips them
        )
    if steps is not None:
        skipped = rests and (beside > 0 or _silent(case, rank, steps) > _longest_step(steps, FAR_LONGER))
    elif any(card.kind != "idle" for card in regimes(case.history, rank.pid)):
        return None  # clipping and scaling wait for a card, an update only starts its kernels: it is not seen for that
    else:
        vanished = updates_vanished(case, rank)
        enough = MANY_COMPANIONS if case.profile(rank).share_where(training.updates) else COMPANIONS
        awaited = LATELY_SECONDS - seen.seconds if 1 <= beside < enough and not vanished else 0.0
        skipped = seen.share_where(training.updates) == 0.0 and (vanished or beside >= enough or awaited > 0)
    if not skipped:
        return None
    unseen = steps is None or (not steps.count and beside >= COMPANIONS)  # no step has ever told how long one takes
    sure = sampled(case, rank, seen, beside) if unseen else counted(case, rank, seen, steps.count if steps else 0)
    sure = min(sure, Level.HIGH) if steps is None and not vanished and beside < MANY_COMPANIONS else sure
    if awaited and sure == NOTED:
        return None
    facts = Facts(frame=seen.top_line(training.in_backward), seen=seen, turns=seen.turns(_backward), beside=beside)
    facts |= Facts(elsewhere=sure == NOTED and steps is not None)
    facts |= Facts(counted=f"{steps.count} steps" if steps else "", decides_in_seconds=awaited)
    return slow(case, SKIPS, rank, 1.0, confidence=sure, **facts)


def _silent(case: Case, rank: Member, steps: StepClock) -> float:
    """Seconds since the newest step that was counted; where none was ever, since training code was first seen."""
    return trained_for(case, rank) if steps.ago_seconds is None else steps.ago_seconds


def _longest_step(steps: StepClock, times: float = LONGER) -> float:
    """How long a step may take here, by those that were made: gradients may be accumulated over many passes."""
    timed = times * (steps.longest_seconds or 0.0)
    return max(timed, MINUTE_SECONDS if steps.count < training.FEW_STEPS or not timed else NOW_SECONDS)


def sampled(case: Case, rank: Member, seen: Profile, beside: float) -> float:
    """How sure it is that a step is due where none is counted.

    Only who has an optimizer of torch leaves it out: it was seen, or its ``step`` stands in the loop that makes the passes
    and nothing is done there beside these and what goes with them, where an update of the program's own would be.
    """
    if case.was_at(rank, "optimizer", "scaler"):
        places = training.of_steps(case, rank)
        return Level.HIGH if not places or training.alike(seen, places) else NOTED
    lines = {user_frame(one.reading) for one in seen.sights if any_tag(tags(one.reading), *training.PASSES)}
    lines |= set(seen.frames(lambda stack: user_frame(stack) if _clears_only(case.history, stack) else None))

    def beside_it(stack: Stack) -> bool:
        part = training.accompanies(stack) or training.looks_at_gradients(case.history, stack)
        return not part and not training.at_a_pass(lines, stack)

    around = {frame for one in seen.sights if training.in_backward(one.reading) for frame in user_frames(one.reading)}
    is_due = any(training.steps_an_optimizer(line_of(case.history, frame)) for frame in around)
    return Level.HIGH if is_due and seen.count(beside_it) <= beside // COMPANIONS else NOTED


def _clears_only(history: History, stack: Stack) -> bool:
    """True if a line of the program sets gradients to zero, and makes no step: what it calls may bear no name of an optimizer's."""
    return "zero_grad" in (called := calls_at(history, stack)) and "step" not in called


def counted(case: Case, rank: Member, seen: Profile, count: int) -> float:
    """How sure a resting count is: the passes of now must be those that made steps before."""
    places = training.of_steps(case, rank)
    if not places:
        return Level.MEDIUM if count >= training.FEW_STEPS else NOTED
    return Level.CERTAIN if training.alike(seen, places) else NOTED


def updates_vanished(case: Case, rank: Member) -> bool:
    """True if many updates were met, and none among so many passes since that several are due."""
    ever, passes = case.profile(rank), partial(_makes_gradients, case.history)
    *before, since = training.between(ever, training.updates)
    runs = [count for run in before if (count := run.count(passes))]
    now, met = since.count(passes), ever.count(training.updates)
    if len(runs) < SEVERAL_TIMES or now <= LONGER * max(runs):
        return False
    return now * met >= MANY_COMPANIONS * sum(runs) and training.alike(since, training.of_steps(case, rank))


def due(case: Case, rank: Member, seen: Profile) -> float:
    """How many samples of a step are due, by those of what goes with each, as often as it was met beside that before."""
    ever, now = case.profile(rank), training.beside_a_step(case.history, seen)
    until = Profile(ever.sights[: len(ever.sights) - len(ever.after_last(training.updates).sights)], 0.0)
    met, before = ever.count(training.updates), training.beside_a_step(case.history, until)
    return now * min(1.0, met / before) if met >= SEVERAL_TIMES and before else now


def accumulates(history: History, seen: Profile) -> bool:
    """True if by its text the loop that makes most of the passes makes a step only after a number of them, which may grow."""
    passes = seen.where(training.in_backward)
    return passes.share_where(partial(_counts_passes, history)) > MOSTLY


def _counts_passes(history: History, stack: Stack) -> bool:
    """True if the innermost loop around a pass tests a count before its step, or is one in a loop that makes the step."""
    around = [line for line in lines_around(history, stack) if line.loops]
    if not around:
        return False
    within = len(around) > 1 or len(around[0].loops) > 1
    return COUNT in around[0].steps_if or (within and not asks_for_an_update(around[0].loop_calls))


def _makes_gradients(history: History, stack: Stack) -> bool:
    """True if a stack makes gradients, and not for an update of the program's own, which searches for as long as it likes."""
    return training.in_backward(stack) and not any(
        asks_for_an_update(line.calls) for line in lines_around(history, stack)
    )


def leaves_early(case: Case, rank: Member, seen: Profile) -> Finding | None:
    """Forward passes without a backward pass in a loop that makes both by its text, and that tests whether something is finite.

    Or one that clears gradients again and again.
    """
    trains = seen.seen(*training.BEGINNING) or seen.count(training.makes_gradients)
    found = None if trains else training.training_loop(case.history, seen)
    trained_at = training.of_steps(case, rank, "forward")
    if trained_at and not training.alike(seen, trained_at, "forward"):
        return None  # another line, or the same function for another caller: an evaluation with gradients left on
    if found is None or not training.may_leave_early(case, rank, found):
        return None
    if turns_within(case.history, rank.pid, case.progress[rank.pid].thread) is not None:
        return None
    guarded, cleared = found.tests_for_finite, training.cleared_samples(case, rank)
    why = "it seems to skip batches whose loss is not finite" if guarded else "it clears gradients but computes none"
    facts = Facts(why=why, does="tests its loss" if guarded else "gradients are cleared in it")
    facts |= Facts(confidence=Level.HIGH if guarded and cleared >= FEW_TIMES else Level.MEDIUM)
    facts |= Facts(frame=found.frame, seen=seen, forward=seen.share("forward"), cleared=cleared)
    return slow(case, LEAVES, rank, 1.0, **facts)


def makes_no_gradients(case: Case, rank: Member) -> Finding | None:
    """Fires on forward passes within the ``step`` of an optimizer of torch, which backward passes followed before, and do no more."""
    since, ever = case.profile(rank, LATELY_SECONDS).after_last(training.in_backward), case.profile(rank)
    lines = since.frames(training.asked_by)
    before = len(ever.sights) - len(ever.after_last(training.in_backward).sights)
    trained = Profile(ever.sights[:before], ever.seconds)
    # Backward passes took a good part of the time until the last that was seen: 40 others follow with e**-4 by chance.
    followed = trained.share_where(training.in_backward) >= NOTABLE and trained.count(training.in_backward) >= FEW_TIMES
    if (asked := sum(lines.values())) < MANY_SAMPLES or not followed:
        return None
    return slow(
        case, ASKED_IN_VAIN, rank, 1.0, confidence=Level.HIGH, frame=next(iter(lines)), asked=asked, since=since
    )


def throws_away(case: Case, rank: Member) -> Finding | None:
    """Fires on a loop that takes batch after batch and makes no step."""
    found, steps = discarded(case, rank), case.steps(rank)
    if found is None:
        return None
    count = (
        f"step {steps.count} was {duration(steps.ago_seconds)} ago" if steps and steps.ago_seconds is not None else ""
    )
    line = DROPS if found.sure > Level.MEDIUM else replace(DROPS, next=MAY_RESUME)
    return slow(case, line, rank, 1.0, confidence=found.sure, frame=found.line, found=found, counted=count)


LOOKS = 60  # samples since the change, in which no other cause was found
# Times as slow: by less, steps are slowed by others that take a tenth of the CPUs (measured: 1.2 to 1.35 times at 0.16 to 0.24);
# others come and go, they do not grow.
A_LITTLE, LITTLE_BY_LITTLE = 1.5, 3.0
GROWS_BYTES, GROWS_BYTES_PER_SECOND = 4 << 20, 256 << 10  # an allocator that still warms up comes to rest
LONGER_INPUTS = "growing inputs do this by design (a curriculum, batches sorted by length)"
BECOMES_LONGER = "look at what {at} iterates over: does it grow with every step?"
SHIFTED = REGRESSED.line("""
    steps became {times:.2f} times as long about {ago:time} ago: {earlier:step} before, {now:step} now
    - saw steps: the median shifted | {earlier:step} over {index} steps, then {now:step} over {rest} | one median
    - not slow_checkpoint: the median itself moved, not a few steps
    - next: perfwatch replay --at TIME shows the job before and after the change
""")
GROWS = REGRESSED.line("""
    steps take longer and longer: {first} at first, {last} now[, most of that at {at}, which takes {share:.0%} of the time now]
    - saw steps: the median grows | {first} at first, {last} now, mostly in order between, over {count} steps | one median
    - not serial_loading: steps took less time before
    - next: {advice}
""")
SHARE_GROWS = REGRESSED.line("""
    steps take longer and longer: {at} takes {now:.0%} of the time, {then:.0%} {seen.seconds:time} ago, and memory grows with it
    - saw stack: ever more of the time is at {at} | {shares} of {seen.samples} samples in order | one share
    - saw process: its memory grows | {grown:.0f} MiB in {seen.seconds:time} | the same
    - not serial_loading: it took a smaller part of the time before
    - next: look at what {at} iterates over: does it grow with every step?
""")
KEEPS_GRAPH = REGRESSED.line("""
    backward takes {lost:.0%} of the time at {at}, which keeps the graph ({keeps}), and memory grows by {grown:.1f} MiB/s: each pass goes
    back through more steps
    - saw stack: is in backward | {lost:.0%} of {samples} samples | two thirds
    - saw process: its memory grows | {grown:.1f} MiB/s | rests
    - not cpu_training: a graph of one step takes no such share, and is freed
    - next: detach what one step passes to the next (state.detach()), and remove {keeps} at {at}
""")


def regressed(case: Case) -> Outcome:
    """Fires on one lasting shift of the step time, on steps that grow all along, or on a graph that does."""
    for rank in case.ranks:
        steps = case.steps(rank, RUN_SECONDS)
        if steps is None or case.progress[rank.pid].kind != "moving":
            continue
        if evaluated(case.history, rank.pid, case.progress[rank.pid].thread, MINUTE_SECONDS):
            continue  # another optimizer than before, whose steps are many evaluations
        if (delay_share(case, rank.pid) or 0.0) > NOTABLE:
            continue
        if (grown := growing(steps.intervals)) is not None and case.profile(rank, MINUTE_SECONDS).samples >= LOOKS:
            return _grows(case, rank, *grown, len(steps.intervals))
        each = max(1.0, steps.advanced / max(1, len(steps.intervals)))  # brief steps are not all listed
        change = change_point(steps.intervals, each)
        if change is None:
            continue
        index, before, after = change
        ago = each * sum(steps.intervals[index:])
        seen = case.profile(rank, ago)
        if seen.samples < LOOKS:
            continue  # what the thread is at since then must be known before nothing else is to blame
        by_model = seen.share("forward", "backward") >= MOST
        line = replace(SHIFTED, next=(LONGER_INPUTS, *SHIFTED.next)) if by_model else SHIFTED
        facts = Facts(times=after / before, ago=ago, earlier=before, now=after, index=index, explains=0.0, culprits=())
        facts |= Facts(rest=len(steps.intervals) - index, confidence=_confidence(case, rank, after / before, by_model))
        return slow(case, line, rank, 1.0 - before / after, **facts)
    return kept_graph(case) or _share_grows(case)


def _confidence(case: Case, rank: Member, times: float, by_model: bool, grows: bool = False) -> float:
    """How sure a change is: others may take the CPUs, and inputs may become longer by design."""
    lasting = grows and times >= LITTLE_BY_LITTLE
    shared = not lasting and taken_by_others(case, rank.pid) >= (MUCH if times >= A_LITTLE else NOTABLE)
    return Level.LOW if shared else Level.MEDIUM if by_model else Level.HIGH


def _grows(case: Case, rank: Member, first: float, last: float, count: int) -> Outcome:
    """Steps that take longer and longer, and the program's own line where most of that time goes."""
    seen = case.profile(rank, MINUTE_SECONDS)
    frame, share = carrier(seen, first, last) or (None, 0.0)
    by_model = frame is not None and seen.share_where(partial(_in_model, frame)) >= MOSTLY * share
    advice = "look for something that grows with every step: inputs, a list, a graph that is kept"
    if (at := show(frame)) is not None:
        advice = BECOMES_LONGER.format(at=at)
    if by_model:
        advice = f"{LONGER_INPUTS}; else look for what {at} is given more of with every step, a graph or a memory that is kept"
    facts = Facts(first=duration(first, 3), last=duration(last, 3), share=share, count=count, advice=advice)
    facts |= Facts(frame=frame, explains=share, culprits=None if frame is not None else ())
    facts |= Facts(confidence=_confidence(case, rank, last / first, by_model, grows=True))
    return slow(case, GROWS, rank, 1.0 - first / last, **facts)


def _share_grows(case: Case) -> Finding | None:
    """Fires where no steps are counted, and one function takes ever more of the time, while memory grows with it."""
    for rank in case.ranks:
        if case.progress[rank.pid].kind != "moving" or case.steps(rank, RUN_SECONDS) is not None:
            continue
        seen, sizes = case.profile(rank, RUN_SECONDS), sizes_of(case.history, rank.pid, RUN_SECONDS)
        found = _growing_function(seen)
        if found is None or not grows(sizes, GROWS_BYTES):
            continue
        frame, shares = found
        if seen.share_where(partial(_in_model, frame)) >= MOSTLY * shares[0]:
            continue  # longer inputs, which may be meant
        lost, told = 1.0 - (1.0 - shares[-1]) / (1.0 - shares[0]), ", ".join(f"{share:.0%}" for share in shares)
        facts = Facts(seen=seen, then=shares[0], now=shares[-1], shares=told, grown=(sizes[-1] - sizes[0]) / 2**20)
        return slow(case, SHARE_GROWS, rank, lost, explains=shares[-1], frame=frame, confidence=Level.HIGH, **facts)
    return None


def _growing_function(seen: Profile) -> tuple[Frame, list[float]] | None:
    """The line whose function takes a larger share in each quarter of the samples, and the shares; None without one.

    What else a step does takes as long as before, so the rest of the time tells how many times as long steps became.
    """
    size = len(seen.sights) // PARTS
    parts = [Profile(seen.sights[at * size : (at + 1) * size], seen.seconds) for at in range(PARTS)]
    if seen.seconds < MINUTE_SECONDS or any(one.samples < ENOUGH_SAMPLES or not one.seen("backward") for one in parts):
        return None
    for frame in parts[-1].busiest(PARTS):
        shares = [one.share_where(partial(is_at, frame)) for one in parts]
        rest = [max(1.0 - share, 1.0 / one.samples) for share, one in zip(shares, parts, strict=True)]
        if shares[0] and grows([-math.log(one) for one in rest], math.log(A_LITTLE)):
            return (frame, [1.0 - one for one in rest]) if _keeps_its_parts(parts[0], parts[-1], frame) else None
    return None


def _keeps_its_parts(first: Profile, last: Profile, without: Frame) -> bool:
    """True if the largest part of the rest has the same share of it as before: a part that shrinks makes all others grow."""
    others = [one for one in first.busiest(PARTS) if (one.function, one.file) != (without.function, without.file)]

    def share(part: Profile, of: Frame) -> float:
        return part.share_where(partial(is_at, of)) / (1.0 - part.share_where(partial(is_at, without)))

    return all(share(first, one) < A_LITTLE * share(last, one) for one in others[:1])


def _in_model(frame: Frame, stack: Stack) -> bool:
    """True if a stack is at that place in the model's own work: in a ``forward``, or below it in torch's modules."""
    below = any_tag(inner_tags(stack), "forward", "backward")
    return is_at(frame, stack) and (below or short_name(frame.function) == "forward")


def kept_graph(case: Case) -> Finding | None:
    """Fires on a rank that is in backward nearly all the time, at a line that keeps the graph, while its memory grows."""
    for rank in case.ranks:
        kept, grown = training.keeps_most(case, rank), _grown(case.history, rank.pid)
        if case.progress[rank.pid].kind != "moving" or kept is None or grown is None:
            continue
        share, line, samples = kept
        facts = Facts(samples=samples, grown=grown / 2**20, keeps=training.KEEPS)
        return slow(case, KEEPS_GRAPH, rank, share, confidence=Level.HIGH, frame=line, **facts)
    return None


def _grown(history: History, pid: int) -> float | None:
    """By how many bytes a second its own memory grows all the time; None if it does not, or too slowly."""
    rate = history.rate(ProcessUsage, pid, of=lambda usage: float(usage.resident_bytes), seconds=LATELY_SECONDS) or 0.0
    growing = grows(sizes_of(history, pid, LATELY_SECONDS), GROWS_BYTES)
    return rate if growing and rate >= GROWS_BYTES_PER_SECOND else None


# How the pace of a run changes

STRETCHES = 8  # of the run, and so many steps in each
MOST_LINES = 20  # that are asked after
FEW_STEPS = 12  # on each side of the change
RATIO = 1.2
# The pace before must have lasted: a GPU's queue takes in the first steps as fast as they are launched.
BEFORE_SECONDS = 2.0
# Of the dozens on either side so many may be as those on the other: on a machine with neighbours a second passes otherwise now and
# then (measured: up to 0.04). As the newest ones, so many in a row are no accident.
STRAYS, LASTS = 0.05, 5


OVERLAP = 0.25  # the slower quarter before and the faster quarter after must not overlap


def growing(intervals: Sequence[float]) -> tuple[float, float] | None:
    """The median step of the first and of the last part of the run, where steps grow all along; None where they do not.

    Args:
        intervals: seconds, oldest first.
    """
    length = len(intervals) // STRETCHES
    if length < STRETCHES:
        return None
    newest = intervals[len(intervals) - STRETCHES * length :]
    medians = [median(newest[at : at + length]) or 0.0 for at in range(0, len(newest), length)]
    steadily = min(medians) > 0 and grows([math.log(one) for one in medians], math.log(A_LITTLE))
    return (medians[0], medians[-1]) if steadily else None


def change_point(intervals: tuple[float, ...], each: float = 1.0) -> tuple[int, float, float] | None:
    """Where the median shifts upward for good: (index, median before, median after); None when it does not.

    Args:
        intervals: seconds, oldest first.
        each: how many steps were made for each that is listed: a look lists the newest ones.
    """
    best: tuple[float, int, float, float] | None = None
    stride = max(1, len(intervals) // 64)
    for index in range(FEW_STEPS, len(intervals) - FEW_STEPS + 1, stride):
        before, after = intervals[:index], intervals[index:]
        low, high = median(before) or 0.0, median(after) or 0.0
        if each * sum(before) < BEFORE_SECONDS or low <= 0 or high < RATIO * low:
            continue
        separated = (quantile(after, OVERLAP) or 0.0) - (quantile(before, 1 - OVERLAP) or 0.0)
        if separated > 0 and (best is None or separated > best[0]) and not _comes_back(before, after, low, high):
            best = (separated, index, low, high)
    return best[1:] if best else None


def _comes_back(before: Sequence[float], after: Sequence[float], low: float, high: float) -> bool:
    """True if steps were as long before for a while, or as quick again after: sorted batches begin anew with each epoch.

    The first steps of a run do not count: they are slow by nature.
    """
    middle = math.sqrt(low * high)
    earlier = [one > middle for one in _blocks(before[FEW_STEPS:])]
    while earlier and earlier[-1]:
        earlier.pop()  # the change itself lies a little earlier
    later = [one < middle for one in _blocks(after)]
    return any(sum(one) > STRAYS * len(one) for one in (earlier, later)) or all(later[-LASTS:])


def _blocks(intervals: Sequence[float]) -> list[float]:
    """The median of each dozen."""
    starts = range(0, len(intervals) - FEW_STEPS + 1, FEW_STEPS)
    return [median(intervals[at : at + FEW_STEPS]) or 0.0 for at in starts]


def carrier(seen: Profile, first: float, last: float) -> tuple[Frame, float] | None:
    """The line of the program's own for which most of the growth goes, and its share of the newer samples; None without one.

    Args:
        seen: samples of the training thread while steps grew.
        first: seconds of a step then.
        last: seconds of a step now.

    Time per step is share times length: what is constant takes a smaller share of longer steps.
    """
    middle = len(seen.sights) // 2
    older, newer = Profile(seen.sights[:middle], seen.seconds), Profile(seen.sights[middle:], seen.seconds)
    best: tuple[float, Frame, float] | None = None
    for frame in newer.busiest(MOST_LINES):
        before, now = (half.share_where(partial(is_at, frame)) for half in (older, newer))
        grown = now * last - before * first
        if now > before and grown >= MOSTLY * (last - first) and (best is None or grown > best[0]):
            best = (grown, frame, now)
    return best[1:] if best else None


# The same call is tried again and again, or the ranks are started again and again

RESTARTED = "restart_loop"
RETRYING = Cause("retrying", "slow", "network", (Stack, Thread), also=(RESTARTED,))

POLLS_PER_SECOND = 20.0  # sleeps of milliseconds: such a loop may poll for what another process makes
BACKS_OFF = RETRYING.line("""
    the training thread {does} {lost:.0%} of the time at {at}[; it tries again in {left:time}][, {wakes:,.0f} times a second; another
    thread or process may produce what it waits for]
    - saw stack: sleeps between tries | {share:.0%} of {seen.samples} samples[, and {trying:.0%} wait in a try] | 0 %
    - not blocked_network: each try returns
    - next: look at what {at} calls
""")
WORKERS_BACK_OFF = RETRYING.line("""
    {waits} backing off and retrying {share:.0%} of the time[, mostly at {line}]
    - saw stack of {kind}: sleep between tries | {share:.0%} of their samples | 0 %
    - not starved_by_network: they sleep between two tries: no response is pending
    - next: look at what {line} calls: which service refuses, and why?
""")
RESTARTS = Cause(RESTARTED, "slow", "user_code", ()).line("""
    {how} of rank {found.rank} in {found.seconds:time}
    - saw process of rank {found.rank}: replaced | {found.processes} processes, one after the other, in {found.seconds:time} | one
    - not crashed: a new process takes the place of each one that ends
    - next: read the first traceback in the ranks' own output
""")


def retrying(case: Case) -> Outcome:
    """Fires on ranks that are restarted, or where a training thread, or a producer of its data, backs off again and again."""
    return _restarting(case) or _backs_off(case) or _workers_back_off(case)


def _backs_off(case: Case) -> Finding | None:
    tries = is_in(case, Bin.RETRYING)
    found = worst(case, lambda rank, _: budget(case, rank).share(Bin.RETRYING)) or _only_tries(case)
    if found is None:
        return None
    rank, seen, lost = found
    several = len(seen.runs(tries)) >= TWICE
    if lost < NEARLY_ALL and not several:
        return None
    node, rests = case.chains[rank.pid].start, seen.where(tries)
    often = case.motion(rank).switches_per_second or 0.0
    share = rests.samples / seen.samples
    left, polls = next_try_seconds(case.history, node.thread, node.stack) or 0.0, often > POLLS_PER_SECOND
    facts = Facts(does="polls" if polls else "backs off and retries", wakes=often if polls else None, seen=seen)
    facts |= Facts(left=left if left >= NOW_SECONDS and not polls else None, frame=rests.top_line(), share=share)
    facts |= Facts(trying=lost - share if lost > share else None)
    # Of one long pause it is not known whether it is the first: a service may have asked for it once.
    unsure = polls or not (several or wakes(case, node.pid, node.tid))
    sure = min(Level.MEDIUM if unsure else Level.CERTAIN, certainty(lost))
    return slow(case, BACKS_OFF, rank, lost, confidence=sure, **facts)


def _workers_back_off(case: Case) -> Finding | None:
    found = starving(case)
    if found is None:
        return None
    at_work = found.profiles(case)
    samples = sum(worker_budget(case, pid, tid).of(Bin.RETRYING).samples for pid, tid, _ in at_work)
    share = samples / max(1, sum(seen.samples for _, _, seen in at_work))
    if share < MOSTLY or not any(wakes(case, pid, tid) for pid, tid, _ in at_work):
        return None
    return found.finding(case, WORKERS_BACK_OFF, share=share)


def _restarting(case: Case) -> Finding | None:
    """That ranks end and new ones of the same number take their places; None where none did."""
    found = restarts(case)
    if found is None:
        return None
    often = found.processes > TWICE
    how = "restarts the ranks again and again" if often else "has restarted the ranks once"
    count = f"{found.processes} processes" if often else "a second process"
    culprits = tuple(Culprit(pid=m.pid, rank=m.rank) for m in case.job.ranks[:2])
    facts = Facts(found=found, how=f"the launcher {how}: {count}")
    sure = Level.CERTAIN if often else Level.LOW
    return slow(case, RESTARTS, case.job.ranks[0], 1.0, culprits=culprits, confidence=sure, **facts)


Place = tuple[tuple[str, str], tuple[tuple[str, str, int], ...]]  # a function, and the lines that led to its call


def _only_tries(case: Case) -> tuple[Member, Profile, float] | None:
    """The first such rank, with its samples and their share: no step between the tries, and it woke for the next one, or is known to."""
    for rank in case.ranks:
        spent, node = budget(case, rank), case.chains[rank.pid].start
        if spent.seen.samples < ENOUGH_SAMPLES or spent.seen.seconds < NOW_SECONDS:
            continue
        again = next_try_seconds(case.history, node.thread, node.stack)
        comes_back = again is not None or wakes(case, node.pid, node.tid)
        share = spent.share(Bin.RETRYING) if comes_back else 0.0
        share = share if share >= NEARLY_ALL else _share_in_one_loop(case, node, spent)
        if share >= NEARLY_ALL:
            return rank, spent.seen, share
    return None


def wakes(case: Case, pid: int, tid: int) -> bool:
    """True if a thread came back from its sleep while we watched."""
    woke = case.history.growth(Thread, pid, tid, of=lambda thread: thread.voluntary_switches)
    return woke is not None and woke[0] >= TWICE


def _share_in_one_loop(case: Case, node: Node, spent: Budget) -> float:
    """Of the samples, those that rest in one loop between tries, or wait in a try of that very loop; 0 for a thread that works."""
    places = {place for one in spent.of(Bin.RETRYING).sights for place in _places(one.reading)[:1]}
    ran = motion(case.history, node.pid, node.tid, LATELY_SECONDS).run_share
    if len(places) != 1 or ran is None or ran > SIGN_OF_LIFE or spent.seen.seen(*TRAINING_TAGS):
        return 0.0
    often = len(spent.seen.runs(is_in(case, Bin.RETRYING))) >= TWICE
    return spent.seen.share_where(lambda stack: not places.isdisjoint(_places(stack))) if often else 0.0


def _places(stack: Stack) -> list[Place]:
    """Every call of the program's own that a stack is in, innermost first: wherever in the called function it is."""
    own = user_frames(stack)
    led = [(frame.file, frame.function, frame.line) for frame in own]
    return [((frame.file, frame.function), tuple(led[index + 1 :])) for index, frame in enumerate(own)]


RULES = (Rule(SKIPPING_STEPS, skipping_steps), Rule(REGRESSED, regressed), Rule(RETRYING, retrying))
