"""Training makes no steps, or slower ones than before."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.cards.accelerated import trained_for
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, median
from perfwatch.triage.moving.growth import carrier, change_point, growing
from perfwatch.triage.moving.motion import was_at
from perfwatch.triage.moving.periods import is_in
from perfwatch.triage.moving.progress import StepClock, evaluated
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares import training
from perfwatch.triage.shares.cpu import delay_share, taken_by_others
from perfwatch.triage.shares.data import discarded
from perfwatch.triage.shares.own_work import calls_at, lines_around
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    ENOUGH_SAMPLES,
    FEW_TIMES,
    HIGH,
    LATELY_SECONDS,
    LOW,
    MANY_SAMPLES,
    MANY_TIMES,
    MEDIUM,
    MINUTE_SECONDS,
    MOST,
    MOSTLY,
    MUCH,
    NOTABLE,
    NOW_SECONDS,
    RUN_SECONDS,
    SEVERAL_TIMES,
)
from perfwatch.triage.slowness import NOTED, Facts, Line, Saw, slow
from perfwatch.triage.words.code import asks_for_an_update, line_of
from perfwatch.triage.words.frames import any_tag, inner_tags, short_name, show, tags, user_frame, user_frames
from perfwatch.verdict import Finding, Outcome
from perfwatch_probes.readings import COUNT, Frame, ProcessUsage, Stack, Steps

SKIPPING_STEPS = Cause("skipping_steps", "slow", "user_code", (Stack,))
REGRESSED = Cause("regressed", "slow", "unknown", (Steps,))

BACKWARD_SHARE = 0.05
# Times the longest step so far, or the most passes between two updates; and where nothing that goes with a step is seen: a wrapper may
# accumulate gradients over more passes than before, as Accelerate's does, and its text does not show it.
LONGER, FAR_LONGER = 2.5, 30.0
# Samples of a step that are due by what goes with it, or by the share of updates before: one that is made would be missed with
# e**-2.5, and with e**-5. Beside so many one sample elsewhere is no update.
COMPANIONS, MANY_COMPANIONS = 2.5, 5.0

STANDS_STILL = Saw("steps", "the count stands still", "{counted}", "grows", share="counted")
WHAT_NEXT = (
    "look at what the guard tests: a loss or gradients that are NaN, infinite or too large",
    "lower the learning rate",
)
SKIPS = Line(
    SKIPPING_STEPS,
    "the loop runs but the optimizer makes no step: at least {turns} backward passes in {seen.seconds:time}, no update{where}",
    (
        Saw(
            "stack",
            "backward without an optimizer step",
            "{turns} passes, {beside:.1f} samples of a step due by what goes with it, 0 in one, of {seen.samples}",
            "one step per pass",
        ),
        STANDS_STILL,
    ),
    (("evaluating", "backward passes run"),),
    WHAT_NEXT,
)
LEAVES = Line(
    SKIPPING_STEPS,
    "the loop runs but makes no update: {why}, at {at}",
    (
        Saw(
            "stack",
            "forward passes only, in a loop that trains",
            "{forward:.0%} of {seen.samples} samples, {cleared} where gradients are cleared, none in backward or a step",
            "backward each time",
        ),
    ),
    (("evaluating", "by its text the loop trains, and {does}"),),
    WHAT_NEXT,
)
ASKED_IN_VAIN = Line(
    SKIPPING_STEPS,
    "the optimizer is asked for steps, and no gradients are made: {at} is left before the backward pass",
    (
        Saw(
            "stack",
            "forward passes that an optimizer's step asked for",
            "{asked} of {since.samples} samples, none in a backward pass",
            "backward in each step",
        ),
    ),
    (("evaluating", "an optimizer asks for these passes"),),
    WHAT_NEXT,
)
TESTED = "look at what the loop tests of a batch before it trains on it: nothing passes"
DROPS = Line(
    SKIPPING_STEPS,
    "no step for {found.seconds:time}: about {found.batches} batches have arrived since and were dropped at {at}",
    (
        Saw(
            "loader",
            "batches are taken",
            "about {found.batches} batches were ordered in place of those that came, in {found.seconds:time}",
            "a step for each",
        ),
        Saw(
            "stack",
            "none is trained on",
            "{found.seen.samples} samples, none in a forward pass, a backward pass or the optimizer",
            "training code after each batch",
        ),
        STANDS_STILL,
    ),
    (("starved_by_transforms", "batches come, and no step is made of them"),),
    (TESTED,),
)
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
        if seen.samples < MANY_SAMPLES or seen.share("backward") < BACKWARD_SHARE:
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
    sure = min(sure, HIGH) if steps is None and not vanished and beside < MANY_COMPANIONS else sure
    if awaited and sure == NOTED:
        return None
    return slow(
        case,
        SKIPS,
        rank,
        1.0,
        decides_in_seconds=awaited,
        confidence=sure,
        frame=seen.top_line(training.in_backward),
        seen=seen,
        turns=seen.turns(_backward),
        beside=beside,
        where=", at lines where no step was made before" if sure == NOTED and steps is not None else "",
        counted=f"{steps.count} steps" if steps else "",
    )


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
    if was_at(case.history, rank.pid, case.progress[rank.pid].thread, "optimizer", "scaler"):
        places = training.of_steps(case, rank)
        return HIGH if not places or training.alike(seen, places) else NOTED
    lines = {user_frame(one.reading) for one in seen.sights if any_tag(tags(one.reading), *training.PASSES)}
    lines |= set(seen.frames(lambda stack: user_frame(stack) if _clears_only(case.history, stack) else None))

    def beside_it(stack: Stack) -> bool:
        part = training.accompanies(stack) or training.looks_at_gradients(case.history, stack)
        return not part and not training.at_a_pass(lines, stack)

    around = {frame for one in seen.sights if training.in_backward(one.reading) for frame in user_frames(one.reading)}
    is_due = any(training.steps_an_optimizer(line_of(case.history, frame)) for frame in around)
    return HIGH if is_due and seen.count(beside_it) <= beside // COMPANIONS else NOTED


def _clears_only(history: History, stack: Stack) -> bool:
    """True if a line of the program sets gradients to zero, and makes no step: what it calls may bear no name of an optimizer's."""
    return "zero_grad" in (called := calls_at(history, stack)) and "step" not in called


def counted(case: Case, rank: Member, seen: Profile, count: int) -> float:
    """How sure a resting count is: the passes of now must be those that made steps before."""
    places = training.of_steps(case, rank)
    if not places:
        return MEDIUM if count >= training.FEW_STEPS else NOTED
    return CERTAIN if training.alike(seen, places) else NOTED


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
    return slow(
        case,
        LEAVES,
        rank,
        1.0,
        confidence=HIGH if guarded and cleared >= FEW_TIMES else MEDIUM,
        frame=found.frame,
        seen=seen,
        forward=seen.share("forward"),
        cleared=cleared,
        why="it seems to leave at a loss that is not finite" if guarded else "it clears gradients and makes none",
        does="tests its loss" if guarded else "gradients are cleared in it",
    )


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
    return slow(case, ASKED_IN_VAIN, rank, 1.0, confidence=HIGH, frame=next(iter(lines)), asked=asked, since=since)


def throws_away(case: Case, rank: Member) -> Finding | None:
    """Fires on a loop that takes batch after batch and makes no step."""
    found, steps = discarded(case, rank), case.steps(rank)
    if found is None:
        return None
    count = (
        f"step {steps.count} was {duration(steps.ago_seconds)} ago" if steps and steps.ago_seconds is not None else ""
    )
    line = DROPS if found.sure > MEDIUM else replace(DROPS, next=MAY_RESUME)
    return slow(case, line, rank, 1.0, confidence=found.sure, frame=found.line, found=found, counted=count)


LOOKS = 60  # samples since the change, in which no other cause was found
# Times as slow: by less, steps are slowed by others that take a tenth of the CPUs (measured: 1.2 to 1.35 times at 0.16 to 0.24);
# others come and go, they do not grow.
A_LITTLE, LITTLE_BY_LITTLE = 1.5, 3.0
QUARTERS = 4  # of the run: by chance four are in order once in 24 times
GROWS_BYTES, GROWS_BYTES_PER_SECOND = 4 << 20, 256 << 10  # an allocator that still warms up comes to rest
FEW_READINGS = 4
LONGER_INPUTS = "inputs that become longer do this by design (a curriculum, batches sorted by length)"
BECOMES_LONGER = "look at what {at} goes through: does it become longer with every step?"
SHIFTED = Line(
    REGRESSED,
    "steps became {times:.2f} times as long about {ago:time} ago: {earlier:step} before, {now:step} now",
    (
        Saw(
            "steps",
            "the median shifted",
            "{earlier:step} over {index} steps, then {now:step} over {rest}",
            "one median",
        ),
    ),
    (("slow_checkpoint", "the median itself moved, not a few steps"),),
    ("perfwatch replay --at TIME shows the job before and after the change",),
)
GROWS = Line(
    REGRESSED,
    "steps take longer and longer: {first} at first, {last} now{where}",
    (
        Saw(
            "steps",
            "the median grows",
            "{first} at first, {last} now, mostly in order between, over {count} steps",
            "one median",
        ),
    ),
    (("serial_loading", "steps took less time before"),),
    ("{advice}",),
)
SHARE_GROWS = Line(
    REGRESSED,
    "steps take longer and longer: {at} takes {now:.0%} of the time, {then:.0%} {seen.seconds:time} ago, and memory grows with it",
    (
        Saw("stack", "ever more of the time is at {at}", "{shares} of {seen.samples} samples in order", "one share"),
        Saw("process", "its memory grows", "{grown:.0f} MiB in {seen.seconds:time}", "the same"),
    ),
    (("serial_loading", "it took a smaller part of the time before"),),
    (BECOMES_LONGER,),
)
KEEPS_GRAPH = Line(
    REGRESSED,
    "backward takes {lost:.0%} of the time at {at}, which keeps the graph ({keeps}), and memory grows by {grown:.1f} MiB/s: "
    "it goes back through more steps each time",
    (
        Saw("stack", "is in backward", "{lost:.0%} of {samples} samples", "two thirds"),
        Saw("process", "its memory grows", "{grown:.1f} MiB/s", "rests"),
    ),
    (("cpu_training", "a graph of one step takes no such share, and is freed"),),
    ("detach what one step hands to the next (state.detach()), and leave {keeps} out at {at}",),
)


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
        sure = _confidence(case, rank, after / before)
        return slow(
            case,
            replace(SHIFTED, next=(LONGER_INPUTS, *SHIFTED.next)) if by_model else SHIFTED,
            rank,
            1.0 - before / after,
            explains=0.0,
            confidence=min(sure, MEDIUM) if by_model else sure,
            culprits=(),
            times=after / before,
            ago=ago,
            earlier=before,
            now=after,
            index=index,
            rest=len(steps.intervals) - index,
        )
    return kept_graph(case) or _share_grows(case)


def _confidence(case: Case, rank: Member, times: float) -> float:
    shared = taken_by_others(case, rank.pid) >= (MUCH if times >= A_LITTLE else NOTABLE)
    return LOW if shared else HIGH


def _grows(case: Case, rank: Member, first: float, last: float, count: int) -> Outcome:
    """Steps that take longer and longer, and the program's own line where most of that time goes."""
    seen = case.profile(rank, MINUTE_SECONDS)
    frame, share = carrier(seen, first, last) or (None, 0.0)
    at = show(frame)
    where = ""
    advice = "look for what becomes longer with every step: inputs, a list, a graph that is kept"
    by_model = frame is not None and seen.share_where(partial(_in_model, frame)) >= MOSTLY * share
    if frame is not None:
        where = f", most of that at {at}, which takes {share:.0%} of the time now"
        advice = BECOMES_LONGER.format(at=at)
    if by_model:
        advice = f"{LONGER_INPUTS}; else look for what {at} is given more of with every step, a graph or a memory that is kept"
    sure = HIGH if last >= LITTLE_BY_LITTLE * first else _confidence(case, rank, last / first)
    return slow(
        case,
        GROWS,
        rank,
        1.0 - first / last,
        explains=share,
        frame=frame,
        culprits=None if frame is not None else (),
        confidence=min(sure, MEDIUM) if by_model else sure,
        first=duration(first, 3),
        last=duration(last, 3),
        where=where,
        count=count,
        advice=advice,
    )


def _share_grows(case: Case) -> Finding | None:
    """Fires where no steps are counted, and one function takes ever more of the time, while memory grows with it."""
    for rank in case.ranks:
        if case.progress[rank.pid].kind != "moving" or case.steps(rank, RUN_SECONDS) is not None:
            continue
        seen, sizes = case.profile(rank, RUN_SECONDS), _memory_of_parts(case.history, rank.pid)
        found = _growing_function(seen)
        if found is None or not _in_order(sizes) or sizes[-1] - sizes[0] < GROWS_BYTES:
            continue
        frame, shares = found
        if seen.share_where(partial(_in_model, frame)) >= MOSTLY * shares[0]:
            continue  # longer inputs, which may be meant
        return slow(
            case,
            SHARE_GROWS,
            rank,
            1.0 - (1.0 - shares[-1]) / (1.0 - shares[0]),
            explains=shares[-1],
            frame=frame,
            confidence=HIGH,
            seen=seen,
            then=shares[0],
            now=shares[-1],
            shares=", ".join(f"{share:.0%}" for share in shares),
            grown=(sizes[-1] - sizes[0]) / 2**20,
        )
    return None


def _growing_function(seen: Profile) -> tuple[Frame, list[float]] | None:
    """The line whose function takes a larger share in each quarter of the samples, and the shares; None without one.

    What else a step does takes as long as before, so the rest of the time tells how many times as long steps became.
    """
    size = len(seen.sights) // QUARTERS
    parts = [Profile(seen.sights[at * size : (at + 1) * size], seen.seconds) for at in range(QUARTERS)]
    if seen.seconds < MINUTE_SECONDS or any(one.samples < ENOUGH_SAMPLES or not one.seen("backward") for one in parts):
        return None
    for frame in parts[-1].busiest(QUARTERS):
        shares = [one.share_where(partial(is_in, frame)) for one in parts]
        rest = [max(1.0 - share, 1.0 / one.samples) for share, one in zip(shares, parts, strict=True)]
        jump = max(math.log(before / after) for before, after in pairwise(rest))
        gradual = jump <= MOST * math.log(rest[0] / rest[-1]) if rest[0] > rest[-1] else False
        if shares[0] and _in_order(shares) and rest[0] >= A_LITTLE * rest[-1] and gradual:
            return (frame, [1.0 - one for one in rest]) if _keeps_its_parts(parts[0], parts[-1], frame) else None
    return None


def _keeps_its_parts(first: Profile, last: Profile, without: Frame) -> bool:
    """True if the largest part of the rest has the same share of it as before: a part that shrinks makes all others grow."""
    others = [one for one in first.busiest(QUARTERS) if (one.function, one.file) != (without.function, without.file)]

    def share(part: Profile, of: Frame) -> float:
        return part.share_where(partial(is_in, of)) / (1.0 - part.share_where(partial(is_in, without)))

    return all(share(first, one) < A_LITTLE * share(last, one) for one in others[:1])


def _memory_of_parts(history: History, pid: int) -> list[float]:
    """The median size of a process in each quarter of the run; empty where it was read too rarely."""
    looks = history.series(ProcessUsage, pid, seconds=RUN_SECONDS)
    sizes = [float(one.reading.resident_bytes) for one in looks]
    size = len(sizes) // QUARTERS
    return [median(sizes[at * size : (at + 1) * size]) or 0.0 for at in range(QUARTERS)] if size else []


def _in_order(values: Sequence[float]) -> bool:
    return len(values) > 1 and all(before < after for before, after in pairwise(values))


def _in_model(frame: Frame, stack: Stack) -> bool:
    """True if a stack is at that place in the model's own work: in a ``forward``, or below it in torch's modules."""
    below = any_tag(inner_tags(stack), "forward", "backward")
    return is_in(frame, stack) and (below or short_name(frame.function) == "forward")


def kept_graph(case: Case) -> Finding | None:
    """Fires on a rank that is in backward nearly all the time, at a line that keeps the graph, while its memory grows."""
    for rank in case.ranks:
        kept, grown = training.keeps_most(case, rank), _grown(case.history, rank.pid)
        if case.progress[rank.pid].kind != "moving" or kept is None or grown is None:
            continue
        share, line, samples = kept
        facts = Facts(samples=samples, grown=grown / 2**20, keeps=training.KEEPS)
        return slow(case, KEEPS_GRAPH, rank, share, confidence=HIGH, frame=line, **facts)
    return None


def _grown(history: History, pid: int) -> float | None:
    """By how many bytes a second its own memory grew, if it never fell meanwhile; else None."""
    looks = history.series(ProcessUsage, pid, seconds=LATELY_SECONDS)
    sizes = [(one.at, one.reading.resident_bytes) for one in looks if one.reading.resident_bytes is not None]
    if len(sizes) < FEW_READINGS or any(later < earlier for (_, earlier), (_, later) in pairwise(sizes)):
        return None
    (began, first), (ended, last) = sizes[0], sizes[-1]
    rate = (last - first) / (ended - began)
    return rate if last - first >= GROWS_BYTES and rate >= GROWS_BYTES_PER_SECOND else None


RULES = (Rule(SKIPPING_STEPS, skipping_steps), Rule(REGRESSED, regressed))
