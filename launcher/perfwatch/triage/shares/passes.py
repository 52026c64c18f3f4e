"""Which passes are the training's own: those that were met while steps were made, told by where they are made and who calls that.

A program may share what makes its gradients: an estimate of the Fisher information, an attack or a search by another method
asks the same line for passes, but from a function or a line of its own, and owes no step.
"""

from collections.abc import Callable, Iterable

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen, median
from perfwatch.triage.moving.progress import stepped
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.updating import updates
from perfwatch.triage.words.frames import is_named, own_frames, short_name, tags, tags_of
from perfwatch_probes.readings import Frame, Stack

# Function, file and line of the pass and of what calls it; further outside the functions alone: a training may be called twice.
Place = tuple[tuple[str, str, int], ...]

LINES = 2
USUAL = 4.0  # times the usual number of passes from one update that is met to the next: what lasts longer may be something else
MOSTLY = 0.5  # of the passes


def place(stack: Stack, tag: str) -> Place | None:
    """Where in the program a pass is made, innermost first; None outside of one."""
    frames = own_frames(stack)
    depths = [depth for depth, frame in enumerate(frames) if tag in tags_of(frame.function, frame.file)]
    if not depths:
        return None
    own = [frame for frame in frames[depths[-1] + 1 :] if is_named(frame)]
    return tuple(
        (short_name(frame.function), frame.file, frame.line if depth < LINES else 0) for depth, frame in enumerate(own)
    )


def of_steps(case: Case, rank: Member, tag: str = "backward") -> frozenset[Place]:
    """Where passes were met while steps were made, as they were counted or, where nobody counts, as updates were met."""
    return case.history.once(("passes of steps", rank.pid, tag), lambda: _of_steps(case, rank, tag))


def alike(seen: Profile, places: frozenset[Place], tag: str = "backward") -> bool:
    """Whether most passes are made where those of steps were."""
    passes = [one.reading for one in seen.sights if tag in tags(one.reading)]
    same = sum(stack.samples for stack in passes if place(stack, tag) in places)
    return same >= MOSTLY * sum(stack.samples for stack in passes)


def made_steps(case: Case, rank: Member, loop: Frame) -> bool | None:
    """Whether passes of steps were met in the function of a loop, or in what it calls; None where none was met anywhere."""
    places = of_steps(case, rank)
    functions = {(function, file) for found in places for function, file, _ in found}
    return (short_name(loop.function), loop.file) in functions if places else None


def _of_steps(case: Case, rank: Member, tag: str) -> frozenset[Place]:
    sights = case.profile(rank).sights
    if case.steps(rank) is not None:
        made = stepped(case.history, rank.pid)
        return _places((one for one in sights if any(begin <= one.at <= end for begin, end in made)), tag)
    runs = [run for run in between(sights, updates)[:-1] if _passes(run, tag)]
    usual = median(_passes(run, tag) for run in runs) or 0.0
    return _places((one for run in runs if _passes(run, tag) <= USUAL * usual for one in run), tag)


def between(sights: tuple[Seen[Stack], ...], holds: Callable[[Stack], bool]) -> list[list[Seen[Stack]]]:
    """The samples before the first one for which something holds, those from there to the next one, and so on."""
    runs: list[list[Seen[Stack]]] = [[]]
    for one in sights:
        if holds(one.reading):
            runs.append([])
        else:
            runs[-1].append(one)
    return runs


def _passes(run: list[Seen[Stack]], tag: str) -> int:
    return sum(one.reading.samples for one in run if tag in tags(one.reading))


def _places(sights: Iterable[Seen[Stack]], tag: str) -> frozenset[Place]:
    return frozenset(found for one in sights if (found := place(one.reading, tag)) is not None)
