"""What a training thread does once for each step, in which loops it does so, and loops over data or an environment without steps."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from perfwatch.triage.case import Case
from perfwatch.triage.history import History, Seen, median, once
from perfwatch.triage.moving.loops import loop_of, releases_gil
from perfwatch.triage.moving.memory import quiet
from perfwatch.triage.moving.motion import stacks_of, whole
from perfwatch.triage.moving.progress import StepClock, stepped
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.budget import GRADIENTS_OFF, Bin, compiles, in_block_without, spent
from perfwatch.triage.shares.own_work import lines_around
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    FEW_TIMES,
    LATELY_SECONDS,
    MANY_SAMPLES,
    MOSTLY,
    NEARLY_ALL,
    NOW_SECONDS,
    SEVERAL_TIMES,
    TWICE,
)
from perfwatch.triage.waits.devices import BEGUN_SECONDS, engine_threads
from perfwatch.triage.words.code import TRAINS, asks_for_an_update, line_of, names
from perfwatch.triage.words.frames import (
    any_tag,
    inside,
    is_named,
    is_user,
    of_torch,
    own_frames,
    short_name,
    steps_torch,
    tags,
    tags_of,
    user_frame,
    user_frames,
)
from perfwatch_probes import readings as r
from perfwatch_probes.readings import FLAG, GATHERED, PERTURBED, Frame, SourceLine, Stack

FEW_STEPS = FEW_TIMES  # before so many, or where none was timed, the length of a step is unknown

EACH_LOSS = frozenset({"scale", "apply_scale", "_lazy_init_scale_growth_tracker"})  # of the scaler: once per backward
NO_UPDATE = frozenset("zero_grad __init__ add_param_group state_dict load_state_dict".split())
PASSES = ("forward", "backward", "loader", "collective")
LOSSES = "torch/nn/functional.py"
# Weight of a sample: clipping costs twice a step of SGD without momentum (measured: 86 and 44 us), and zero_grad may, or a look
# at gradients, cost more than that.
COMPANION_WEIGHT, CLEARING_WEIGHT = 0.5, 0.25
FINITE = frozenset({"isfinite", "isnan", "isinf"})


def steps_an_optimizer(line: SourceLine | None) -> bool:
    """True if the loop around a line of the program, or a function that it calls, makes passes and an optimizer's steps."""
    return line is not None and names(line.loop_calls) >= TRAINS and asks_for_an_update(line.loop_calls)


def _functions_tagged(stack: Stack, tag: str) -> set[str]:
    return {short_name(frame.function) for frame in stack.frames if tag in tags_of(frame.function, frame.file)}


def updates(stack: Stack) -> bool:
    """True if a stack is in an optimizer's update, not merely in zero_grad, or where the optimizer is made."""
    called = _functions_tagged(stack, "optimizer")
    return bool(called) and not called & NO_UPDATE


def makes_gradients(stack: Stack) -> bool:
    """True if a stack makes gradients or an update of them: to clear gradients is neither."""
    return any_tag(tags(stack), "backward", "scaler") or updates(stack)


def in_backward(stack: Stack) -> bool:
    """True if a stack is in a backward pass."""
    return "backward" in tags(stack)


def decodes(seen: Profile, steps: StepClock | None) -> bool:
    """True if forward passes alone were seen for long: to decode item after item is no training whose launches are slow.

    Steps that are counted meanwhile are: all but the head may be frozen.
    """
    if steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seen.seconds:
        return False
    since = seen.after_last(makes_gradients)
    return since.samples >= ENOUGH_SAMPLES and since.share("forward") >= MOSTLY


def without_gradients(history: History, seen: Profile) -> bool:
    """True if all of it was in functions that ``torch.no_grad`` or ``inference_mode`` decorates, or in blocks of either."""
    off = seen.share_where(lambda stack: "no_grad" in tags(stack) or in_block_without(history, stack) is not None)
    return off >= NEARLY_ALL


def accompanies(stack: Stack) -> bool:
    """True if a stack is in what goes with a step, once for each: it costs up to twice as much."""
    return not updates(stack) and (any_tag(tags(stack), "clip") or bool(_functions_tagged(stack, "scaler") - EACH_LOSS))


def clears(stack: Stack) -> bool:
    """True if a stack is in zero_grad, which may cost as much as a plain step."""
    return "zero_grad" in _functions_tagged(stack, "optimizer")


def looks_at_gradients(history: History, stack: Stack) -> bool:
    """True if a stack stands at a line of the program that asks gradients for their size, or whether they are finite."""
    if any_tag(tags(stack), *PASSES) or updates(stack):
        return False
    line = line_of(history, user_frame(stack))
    return line is not None and ".grad" in line.text and bool(names(line.calls) & {*FINITE, "norm"})


def beside_a_step(history: History, seen: Profile) -> float:
    """How many samples of a step are due, by those of what goes with each."""

    def dearer(stack: Stack) -> bool:
        return clears(stack) or looks_at_gradients(history, stack)

    once, cleared = seen.count(accompanies), seen.count(dearer)
    parts = seen.count(lambda stack: (accompanies(stack) or dearer(stack)) and _part_of_a_step(history, stack))
    return 0.0 if parts > MOSTLY * (once + cleared) else COMPANION_WEIGHT * once + CLEARING_WEIGHT * cleared


def _part_of_a_step(history: History, stack: Stack) -> bool:
    """True if by its text the loop that makes the passes makes no step: one is made of all its turns.

    Differentially private training clips the gradient of each example; an attack clears the gradients before each of its passes.
    """
    called = (names(line.loop_calls) for line in lines_around(history, stack))
    inner = next((one for one in called if "backward" in one), None)
    return inner is not None and not any("step" in name for name in inner)


def at_a_pass(lines: set[Frame | None], stack: Stack) -> bool:
    """In a pass, in a loss of torch, or at a line of the program that makes a pass: a loss of its own is computed there.

    A sample that was torn, so that no frame of the program is left of it, is no update of the program's own either.
    """
    losses = any(of_torch(frame) and frame.file.endswith(LOSSES) for frame in stack.frames)
    own = user_frame(stack)
    return losses or any_tag(tags(stack), *PASSES) or own in lines or (own is not None and of_torch(own))


# Function, file and line of the pass and of what calls it; further outside the functions alone: a training may be called twice.
Place = tuple[tuple[str, str, int], ...]


def place(tag: str, stack: Stack) -> Place | None:
    """Where in the program a pass is made, innermost first; None outside of one."""
    frames = own_frames(stack)
    depths = [depth for depth, frame in enumerate(frames) if tag in tags_of(frame.function, frame.file)]
    if not depths:
        return None
    own = [frame for frame in frames[depths[-1] + 1 :] if is_named(frame)]
    return tuple(
        (short_name(frame.function), frame.file, frame.line if depth < TWICE else 0) for depth, frame in enumerate(own)
    )


@once
def of_steps(case: Case, rank: Member, tag: str = "backward") -> frozenset[Place]:
    """Where passes were sampled while steps were made, by their count or, without one, by the updates that were sampled."""
    sights: Iterable[Seen[Stack]] = case.profile(rank).sights
    if case.steps(rank) is not None:
        made = stepped(case.history, rank.pid)
        sights = (one for one in sights if any(begin <= one.at <= end for begin, end in made))
    else:
        runs = [(run, run.count(lambda stack: tag in tags(stack))) for run in between(case.profile(rank), updates)[:-1]]
        usual = median(count for _, count in runs if count) or 0.0
        sights = (one for run, count in runs if 0 < count <= SEVERAL_TIMES * usual for one in run.sights)
    return frozenset(found for one in sights if (found := place(tag, one.reading)) is not None)


def alike(seen: Profile, places: frozenset[Place], tag: str = "backward") -> bool:
    """True if most passes are made where those of steps were."""
    passes = seen.count(lambda stack: tag in tags(stack))
    return seen.count(lambda stack: tag in tags(stack) and place(tag, stack) in places) >= MOSTLY * passes


def made_steps(case: Case, rank: Member, loop: Frame) -> bool | None:
    """True if passes of steps were met in the function of a loop, or in what it calls; None where none was met anywhere."""
    places = of_steps(case, rank)
    functions = {(function, file) for found in places for function, file, _ in found}
    return (short_name(loop.function), loop.file) in functions if places else None


def between(seen: Profile, holds: Callable[[Stack], bool]) -> list[Profile]:
    """The samples before the first one for which something holds, those from there to the next one, and so on."""
    cuts = [-1, *(number for number, one in enumerate(seen.sights) if holds(one.reading)), len(seen.sights)]
    return [Profile(seen.sights[a + 1 : b], 0.0) for a, b in pairwise(cuts)]


SWITCHES = frozenset({"set_grad_enabled", "eval"})  # from there on
EVALUATES = SWITCHES | GRADIENTS_OFF
BEGINNING = ("compile", "import")  # the first pass of a training


@dataclass(frozen=True)
class Loop:
    """A loop that makes forward passes: where most are called from, the line there, and whether it says that it evaluates."""

    frame: Frame
    line: SourceLine
    evaluates: bool

    @property
    def tests_for_finite(self) -> bool:
        """True if something in the loop tests whether a value is finite."""
        return bool(names(self.line.loop_calls) & FINITE)


def training_loop(history: History, seen: Profile) -> Loop | None:
    """Where most forward passes are called from, and the innermost loop around, if by its text it makes backward passes and steps too.

    Such a loop trains, unless a flag says that it evaluates this time, or it collects experience between two updates.
    """
    if seen.share_where(in_environment(history, seen)):
        return None
    passes = [one.reading for one in seen.sights if "forward" in tags(one.reading)]
    around = [(stack.samples, found) for stack in passes if (found := _loop_around(history, stack)) is not None]
    trains = [(samples, found) for samples, found in around if steps_an_optimizer(found.line)]
    many = sum(samples for samples, _ in trains)
    if many <= MOSTLY * sum(stack.samples for stack in passes):
        return None
    evaluating = sum(samples for samples, found in trains if found.evaluates)
    return replace(max(trains, key=lambda one: one[0])[1], evaluates=evaluating > MOSTLY * many)


def _loop_around(history: History, stack: Stack) -> Loop | None:
    frames = own_frames(stack)
    depth = max(index for index, frame in enumerate(frames) if "forward" in tags_of(frame.function, frame.file))
    outside = [frame for frame in frames[depth + 1 :] if is_user(frame)]
    for frame in outside:
        line = line_of(history, frame)
        if line is None or line.loops:
            callers = frames[frames.index(frame) + 1 :]
            return Loop(outside[0], line, _evaluates(history, line, callers)) if line is not None else None
    return None


def _evaluates(history: History, line: SourceLine, callers: tuple[Frame, ...]) -> bool:
    """True if a flag decides on the backward pass, or gradients are switched off in the loop, around it or where it is called from.

    One function may serve both phases.
    """
    outer = [block for frame in callers if (at := line_of(history, frame)) is not None for block in at.within]
    blocks = (*line.within, *outer)
    decorated = any("no_grad" in tags_of(frame.function, frame.file) for frame in callers)
    around = names(block.partition("(")[0] for block in blocks)
    # A block of its own in the loop is not around the pass; one by a name may be.
    beside = EVALUATES if blocks else SWITCHES
    off = bool(around & EVALUATES) or bool(names(line.loop_calls) & beside)
    return FLAG in line.passes_if or off or decorated


def searches(history: History, seen: Profile) -> bool:
    """True if most passes are in a loop that tries parameters out: evolution strategies train so, without gradients."""

    def tries(stack: Stack) -> bool:
        return any(line.parameters == PERTURBED for line in lines_around(history, stack))

    passes = seen.where(lambda stack: "forward" in tags(stack))
    return passes.share_where(tries) > MOSTLY


def may_leave_early(case: Case, rank: Member, loop: Loop) -> bool:
    """True if a loop that trains tests whether something is finite, or clears gradients and makes none.

    And nothing in it or around says that it evaluates as well.
    """
    return not loop.evaluates and (loop.tests_for_finite or cleared_samples(case, rank) >= FEW_TIMES)


def cleared_samples(case: Case, rank: Member) -> int:
    """Samples where gradients are cleared, since the last one in which any were made or used.

    A backward pass and a step cost more than the clearing, and are missed beside three of them with e**-6.
    """
    return case.profile(rank, LATELY_SECONDS).after_last(makes_gradients).count(clears)


def unfollowed(case: Case, rank: Member) -> int:
    """Samples of forward passes that an optimizer's step asked for, if they are many and no backward pass followed; else 0."""
    seen = case.profile(rank, LATELY_SECONDS)
    asked = 0 if seen.seen("backward") else sum(seen.frames(asked_by).values())
    return asked if asked >= MANY_SAMPLES else 0


def asked_by(stack: Stack) -> Frame | None:
    """The program's own frame that a step of torch's optimizers called, where that is in a forward pass now; None elsewhere."""
    if "forward" not in tags(stack):
        return None
    called = None
    for frame in stack.frames:
        if steps_torch(frame):
            return called
        called = frame if is_user(frame) else called
    return None


KEEPS = "retain_graph=True"


def keeps_most(case: Case, rank: Member) -> tuple[float, Frame | None, int] | None:
    """The share of its samples in a backward pass that keeps its graph, where, and of how many, if that is nearly all; else None."""

    def keeps(stack: Stack) -> bool:
        line = line_of(case.history, user_frame(stack))
        return line is not None and KEEPS in line.text.replace(" ", "") and in_backward(stack)

    seen = case.profile(rank, LATELY_SECONDS)
    share = seen.share_where(keeps)
    return (share, seen.top_line(keeps), seen.samples) if seen.samples >= MANY_SAMPLES and share >= NEARLY_ALL else None


# Loops over data that make no step

STEPS = ("backward", "optimizer")  # between them a draw is a part of each step; one that lasts is a long phase
LOADING = ("loader", "loader_wait", "fetch", "collate")
# What takes a batch, looks at it, adds up or shows how far it is: no model, and nothing that a program would call its own work.
LOOKS_AT = frozenset(
    "len sum mean var std min max any all isnan isfinite unique bincount histc square sqrt pow abs argmax size numel dim shape"
    " float double long int item tolist numpy cpu detach view reshape flatten clone zeros ones tensor cat stack"
    " append extend range enumerate zip next islice tqdm set_postfix print time perf_counter monotonic format round str".split()
)


def makes_batches(case: Case, rank: Member, seen: Profile) -> float:
    """The share of the time in which a training thread makes its own batches, or draws them between its steps."""
    if seen.seen(*STEPS):
        return spent(case, seen).share(Bin.LOADING, Bin.DRAWING)
    return spent(case, seen).share(Bin.LOADING) if gathers(case, rank) is None else 0.0


@once
def gathers(case: Case, rank: Member) -> Frame | None:
    """The line of a loop that goes through data for nothing but statistics; None where it may train, or its text is unknown."""
    seen, steps = case.profile(rank, LATELY_SECONDS), case.progress[rank.pid].steps
    counted = steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seen.seconds
    trains = seen.seen("forward", "backward", "optimizer", "scaler", "collective")
    loop = (
        None if seen.samples < ENOUGH_SAMPLES or counted or trains else seen.commonest(partial(_taken_at, case.history))
    )
    line = line_of(case.history, loop)
    if loop is None or line is None or seen.share_where(partial(inside, loop)) < NEARLY_ALL:
        return None
    looks = line.loops[:1] == ("for",) and not line.calls_unnamed and names(line.loop_calls) <= LOOKS_AT
    return loop if looks else None


def gathers_gradients(case: Case, rank: Member) -> Frame | None:
    """The line of a loop that makes backward passes and only adds up the gradients, where it was not left; None without one."""
    seen, steps = case.profile(rank, LATELY_SECONDS), case.progress[rank.pid].steps
    counted = steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seen.seconds
    if seen.samples < ENOUGH_SAMPLES or seen.seconds < NOW_SECONDS or counted or seen.count(updates):
        return None

    def gathered_at(stack: Stack) -> Frame | None:
        frames = user_frames(stack) if in_backward(stack) else ()
        looped = next((one for one in frames if (line := line_of(case.history, one)) is not None and line.loops), None)
        line = line_of(case.history, looped)
        return looped if line is not None and line.parameters == GATHERED else None

    loop, untorn = seen.commonest(gathered_at), seen.where(lambda stack: is_user(stack.frames[-1]))
    return loop if loop is not None and untorn.share_where(partial(inside, loop)) == 1.0 else None


def _taken_at(history: History, stack: Stack) -> Frame | None:
    """The program's own line at which batches are taken; of a generator that hands them on, the line that takes them there."""
    frames = own_frames(stack)
    depths = [n for n, frame in enumerate(frames) if any_tag(tags_of(frame.function, frame.file), *LOADING)]
    outside = [frame for frame in frames[max(depths, default=len(frames)) + 1 :] if is_user(frame)]
    return next((one for one in outside if (line := line_of(history, one)) is None or not line.hands_out), None)


# Environments

ENVIRONMENT_CALLS = frozenset("step reset step_wait step_async".split())
# What Gym made the field's interface (https://gymnasium.farama.org/api/env): ``step(action)`` answers with an observation, a
# reward, whether that was the end, and more, so that three names at least take the answer of one call.
_ANSWERED = re.compile(r"^\(?[^=(]+,[^=(]+,[^=]*=\s*(?:await\s+)?[^=\s]*\bstep(?:_wait)?\(\s*[^)\s]")
# Else its owner is called what it is: the step of an optimizer, a scheduler or a trainer is another matter.
_OWNED = re.compile(r"(?:^|\.)\w*env(?:s|ironments?)?\.(?:step|reset)(?:_wait|_async)?$", re.IGNORECASE)
_LIBRARIES = re.compile(
    r"/(?:gymnasium|gym|stable_baselines3/common/vec_env|pettingzoo|torchrl/envs|dm_env|pufferlib)/"
)


def in_environment(history: History, seen: Profile) -> Callable[[Stack], bool]:
    """What tells whether a stack is in an environment's ``step`` or ``reset``: it computes there, or waits for processes that do.

    A function of that name below which ``seen`` has training is a step of the program's own, whatever it answers with.
    """
    trains = {
        (frame.function, frame.file)
        for one in seen.sights
        if any_tag(tags(one.reading), "backward", "optimizer")
        for frame in one.reading.frames
        if short_name(frame.function) in ENVIRONMENT_CALLS
    }

    def holds(stack: Stack) -> bool:
        frames = own_frames(stack)
        return any(
            short_name(frame.function) in ENVIRONMENT_CALLS
            and (frame.function, frame.file) not in trains
            and (_LIBRARIES.search(frame.file) is not None or _asks(line_of(history, caller)))
            for frame, caller in zip(frames, (*frames[1:], None), strict=True)
        )

    return holds


def in_rollout(history: History, seen: Profile) -> Callable[[Stack], bool]:
    """The same, and what else the loop does that steps the environment: it acts, and keeps what comes of it; no pass goes backward."""
    steps = in_environment(history, seen)
    lines = (line_of(history, frame) for frame in {frame for one in seen.sights for frame in one.reading.frames})
    asking = [line for line in lines if line is not None and _asks(line)]
    asked = {(line.file, call) for line in asking for call in line.calls if short_name(call) in ENVIRONMENT_CALLS}

    def holds(stack: Stack) -> bool:
        line = line_of(history, user_frame(stack))
        acts = line is not None and "backward" not in names(line.loop_calls)
        return steps(stack) or (acts and line is not None and any((line.file, one) in asked for one in line.loop_calls))

    return holds


def _asks(line: SourceLine | None) -> bool:
    return line is not None and (bool(_ANSWERED.search(line.text)) or any(map(_OWNED.search, line.calls)))


# Before the first step, and just after it


def prepares(case: Case, rank: Member) -> bool:
    """True if it turns in a loop of Python that has an end, at several lines, and was never seen at training."""
    return has_not_trained(case, rank) and loop_of(case.history, case.chains[rank.pid].end.node).counts


def goes_through_rounds(case: Case, rank: Member) -> bool:
    """True if it has never trained, and turns in loops that have an end within one that waits for a condition.

    A vocabulary is merged in rounds, each over all of the words: a round ends, and how many there will be is not known.
    """
    kinds = loop_of(case.history, case.chains[rank.pid].end.node).kinds
    return kinds[:1] == ("for",) and "while" in kinds and has_not_trained(case, rank)


def prepares_natively(case: Case, rank: Member) -> bool:
    """True if it does so in many native calls, of numpy say: mostly without the GIL."""
    end = case.chains[rank.pid].end
    return (
        end.kind == "native"
        and _untrained(case, rank)
        and loop_of(case.history, end.node).counts
        and releases_gil(case.history, end.node)
    )


def has_not_trained(case: Case, rank: Member) -> bool:
    """True if it runs Python at several lines, was never seen at training, and nothing remembers any."""
    # One long call is ``computing_on_host``, and a thread that waits prepares nothing.
    return case.chains[rank.pid].end.kind == "python" and _untrained(case, rank)


def _untrained(case: Case, rank: Member) -> bool:
    ever = case.profile(rank)
    return (
        ever.samples >= MANY_SAMPLES
        and len(ever.lines()) >= TWICE
        and not ever.seen(*TRAINING_TAGS)
        and quiet(case, rank).seconds == 0.0  # what remembers training has begun it
    )


# After the first step: what imports, the first allocations and the crowd of the start have cost is out of the windows then.
SETTLED_SECONDS = 12.0
BEFORE_SECONDS = 2.0  # a job is started a moment before its watch
# Slow causes that hold however young a run is: events and states, not shares of a window. Restarted ranks always begin.
NOT_BY_SHARES = frozenset({"restart_loop", "mismatched_collective", "degraded_link", "shared_memory_exhausted"})


def beginning(case: Case) -> bool:
    """True if some rank makes its first steps now, or none yet: it is watched from its start, or was seen to import its libraries."""
    return any(_begins(case, rank) or _has_just_imported(case, rank) for rank in case.ranks)


def _begins(case: Case, rank: Member) -> bool:
    counted = case.history.series(r.Steps, rank.pid)
    if not counted:
        return case.session.mode == "run" and _age_seconds(case, rank) < LATELY_SECONDS
    first, intervals = counted[0], counted[0].reading.interval_seconds
    # Of many steps the first look has the newest intervals alone: those before were as long, as far as is known.
    before = max(sum(intervals), first.reading.count * (median(intervals) or 0.0))
    known = len(intervals) >= 2 or first.reading.count <= 2
    return known and case.at - first.at + before < SETTLED_SECONDS


def _has_just_imported(case: Case, rank: Member) -> bool:
    """True if a module of a library was executed a moment ago: torch imports its compiler with the first optimizer."""
    return any(_imports(one.reading) for one in case.profile(rank).sights if one.at > case.at - SETTLED_SECONDS)


def _imports(stack: r.Stack) -> bool:
    """For the program's own code, which may train where it is imported itself; a module is executed once, and looked up often."""
    for frame in own_frames(stack):
        if is_user(frame):
            return False
        if short_name(frame.function) == "exec_module" and "import" in tags_of(frame.function, frame.file):
            return True
    return False


def _age_seconds(case: Case, rank: Member) -> float:
    """Of a process that began when the watch did, or later; of any other it does not matter."""
    seen = case.history.latest(r.Process, rank.pid)
    age = None if seen is None else seen.reading.age_seconds
    if seen is None or age is None or age > seen.at + BEFORE_SECONDS:
        return LATELY_SECONDS
    return age + case.at - seen.at


# The compiler


def in_compiler(history: History, seen: Profile, awaits: bool = False) -> Callable[[r.Stack], bool]:
    """What tells whether a stack of one training thread is in the compiler, or in a backward pass for which it works.

    Inductor compiles the kernels of a backward pass when it first runs, in autograd's own thread: the training thread stands in
    ``backward`` meanwhile, as in any pass, and the card has nothing to do.

    Args:
        history: where the engine's own stacks are.
        seen: samples of that thread.
        awaits: it is known otherwise that a backward pass waits for the compiler.
    """

    def waits(stack: r.Stack) -> bool:
        return "backward" in tags(stack) and not compiles(stack)

    pid = seen.sights[-1].reading.pid if seen.sights else 0
    looks = [one.reading for tid in engine_threads(history, pid) for one in stacks_of(history, pid, tid, seen.seconds)]
    awaits = awaits or sum(look.samples for look in looks if compiles(look)) > MOSTLY * seen.count(waits)
    return lambda stack: compiles(stack) or (awaits and waits(stack))


def returns(history: History, seen: Profile) -> int:
    """How often a training thread went into the compiler for a forward pass after a step's other parts, known or seen.

    A pass before the first look counts: torch's thread that runs it for a card begins with it, and the kernel remembers when
    that last ran.
    """
    count, passed, first = 0, False, True
    for one in untorn(seen).sights:
        found = tags(one.reading)
        if not found.isdisjoint({"backward", "optimizer"}):
            passed = passed or "compile" not in found
        elif compiles(one.reading):
            passed = passed or (first and passed_before(history, one.reading.pid, one.at - one.reading.span_seconds))
            count += passed
            passed = first = False
    return count


def steps_around(history: History, seen: Profile) -> bool | None:
    """True if the loop in which it compiles makes steps, as its text says; None where no loop with a backward pass was read.

    One that does passes only warms up: each shape is tried once before training.
    """
    lines = [line for one in seen.sights if compiles(one.reading) for line in lines_around(history, one.reading)]
    called = [names(line.loop_calls) for line in lines]
    return any(one >= TRAINS for one in called) if any("backward" in one for one in called) else None


def untorn(seen: Profile) -> Profile:
    """Without torn stacks: the compiler traces backward passes, and the inner half of such a stack looks like one."""
    return Profile(tuple(whole(list(seen.sights))), seen.seconds)


def passed_before(history: History, pid: int, at: float) -> bool:
    """True if a backward pass on a card was over by then."""
    for tid in engine_threads(history, pid):
        looks = history.series(r.Thread, pid, tid)
        ran = next((one for one in looks if (one.reading.run_seconds or 0.0) >= BEGUN_SECONDS), None)
        if ran is not None and ran.reading.ran_ago_seconds is not None and ran.at - ran.reading.ran_ago_seconds < at:
            return True
    return False
