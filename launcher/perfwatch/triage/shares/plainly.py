"""Whether a training on the CPU is plainly one: its time goes into training work that is known as such, and updates go with it."""

from collections import Counter
from collections.abc import Sequence

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.called_back import CalledBack, hook_of, python_called_back
from perfwatch.triage.shares.kept_graph import keeps_most
from perfwatch.triage.shares.native import native_python_share
from perfwatch.triage.shares.no_gradients import unfollowed
from perfwatch.triage.shares.other_work import NATIVE_SHARE, OWN_SHARE, keeps_gil
from perfwatch.triage.shares.own_work import own_work, prepares
from perfwatch.triage.shares.updating import in_block_without, updates
from perfwatch.triage.words.code import is_plain, line_of
from perfwatch.triage.words.frames import of_tensors, show, tags, tags_of
from perfwatch_probes.readings import Frame, Stack

WINDOW_SECONDS = 15.0
MANY_PASSES = 8
MOSTLY_PLAIN = 0.5  # of the samples
MOSTLY_HOOKS = 0.5  # likewise
MUCH = 0.2  # of the time: a look at some held-out batches takes less
NEARLY = 0.08  # of the time: a cause of its own from 0.15 on, and what is lost less than that is not nothing


def doubt(case: Case, ranks: Sequence[Member]) -> str:
    """Why what these ranks do may not be plain training, with a semicolon before it; empty where all are at work known as such."""
    if asked := max(unfollowed(case, rank) for rank in ranks):
        return (
            f"; {asked} samples of forward passes, none of a backward pass: most of it is frozen, or steps are skipped"
        )
    if plain := next((line for rank in ranks if (line := plain_python(case, rank)) is not None), None):
        return f"; most of it is plain Python, at {show(plain)}: is that the model?"
    if back := next((one for rank in ranks if (one := _perhaps_python(case, rank)) is not None), None):
        return f"; {back.share:.0%} of it is in {show(back.frame)}, which torch calls back: is that plain Python?"
    if hooks := [found for rank in ranks if (found := _in_hooks(case, rank)) is not None]:
        share, line = max(hooks, key=lambda found: found[0])
        return f"; {share:.0%} of it is in hooks, mostly at {show(line)}: is that meant in each step, and does it grow?"
    if others := [found for rank in ranks if (found := _elsewhere(case, rank)) is not None]:
        share, line = max(others, key=lambda found: found[0])
        return f"; {share:.0%} of it at {show(line)}, outside of modules, backward passes and optimizers: is that the model?"
    if passes_on := [found for rank in ranks if (found := _without_gradients(case, rank)) is not None]:
        share, line = max(passes_on, key=lambda found: found[0])
        return f"; {share:.0%} of it is forward passes without gradients, at {show(line)}: an evaluation, or a part of the method?"
    if kept := next((graph for rank in ranks if (graph := keeps_most(case, rank)) is not None), None):
        return f"; {kept[0]:.0%} of it is backward passes that keep their graph, at {show(kept[1])}: does it grow with every step?"
    if fetching := max((_fetching(case, rank) for rank in ranks), default=0.0):
        return f"; {fetching:.0%} of it makes batches in the training thread: workers would do that beside it"
    if passes := max(without_updates(case, rank) for rank in ranks):
        return f"; no update was seen after {passes} backward passes: it is brief, or steps are skipped (perfwatch run counts them)"
    return ""


def plain_python(case: Case, rank: Member) -> Frame | None:
    """The program's own line in a forward pass where most of the time goes into plain Python, for all that is known; else None.

    It keeps the GIL; or most of it is at lines in loops that call nothing but builtins, and no dump saw those without the GIL. It
    may be a model that is written so, or texts that are cut into tokens anew in each step.
    """
    seen = case.profile(rank, WINDOW_SECONDS)
    own = seen.share_where(_in_own_forward)
    if own < MOSTLY_PLAIN:
        return None
    plain = seen.share_where(lambda stack: _at_plain_line(case.history, stack)) >= MOSTLY_PLAIN * own
    return seen.top_line(_in_own_forward) if plain or keeps_gil(seen, _in_own_forward) else None


def _at_plain_line(history: History, stack: Stack) -> bool:
    if not _in_own_forward(stack) or stack.owns_gil is False:
        return False
    line = line_of(history, stack.frames[0])
    return line is not None and bool(line.loops) and is_plain(history, stack.frames[0])


def _perhaps_python(case: Case, rank: Member) -> CalledBack | None:
    """What torch calls back for a good part of the time, where too few dumps tell whether Python computes there."""
    found = python_called_back(case, rank)
    return found if found is not None and found.is_python else None


def _in_hooks(case: Case, rank: Member) -> tuple[float, Frame | None] | None:
    """The share of the time that hooks take, and where, if that is most of it: they look at a training, and are none."""
    seen = case.profile(rank, WINDOW_SECONDS)
    share = seen.share_where(_hooked)
    return (share, seen.top_line(_hooked)) if share >= MOSTLY_HOOKS else None


def _hooked(stack: Stack) -> bool:
    return hook_of(stack) is not None


def _elsewhere(case: Case, rank: Member) -> tuple[float, Frame | None] | None:
    """The share of the time that goes into functions of the program's own, and where, if it is so much that nobody knows what it is."""
    seen = case.profile(rank, WINDOW_SECONDS)
    share, native = seen.share_where(own_work), native_python_share(case, rank)
    unknown = share >= OWN_SHARE and (native is None or native >= NATIVE_SHARE)
    return (share, seen.top_line(own_work)) if unknown else None


def _without_gradients(case: Case, rank: Member) -> tuple[float, Frame] | None:
    """The share of the time in which the model runs without gradients, and where, if that is much: evaluations, or a teacher."""
    seen, lines = case.profile(rank, WINDOW_SECONDS), Counter[Frame]()
    for stack in (one.reading for one in seen.sights if "forward" in tags(one.reading)):
        if (frame := _decorated(stack) or in_block_without(case.history, stack)) is not None:
            lines[frame] += stack.samples
    evaluates = lines.total() >= MUCH * seen.samples and lines
    return (lines.total() / seen.samples, lines.most_common(1)[0][0]) if evaluates else None


def _decorated(stack: Stack) -> Frame | None:
    """The function that torch.no_grad decorates and that a thread is in, if it is in any."""
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    return next((frame for frame, caller in pairs if "no_grad" in tags_of(caller.function, caller.file)), None)


def _fetching(case: Case, rank: Member) -> float:
    """The share of the time in which the training thread makes its own batches, if that is nearly a cause of its own; else 0."""
    share = case.profile(rank, WINDOW_SECONDS).share_where(prepares)
    return share if share >= NEARLY else 0.0


def _in_own_forward(stack: Stack) -> bool:
    """The program's own frame innermost, or one of a library that is not written in torch's operations."""
    return bool(stack.frames) and not of_tensors(stack.frames[0]) and "forward" in tags(stack)


def without_updates(case: Case, rank: Member) -> int:
    """How many backward passes were met, if they are many and no update was; else 0. Where steps are counted none need be seen."""
    seen = case.profile(rank, WINDOW_SECONDS)
    passes = seen.turns(lambda stack: "backward" in tags(stack))
    missed = case.steps(rank) is None and passes >= MANY_PASSES and seen.share_where(updates) == 0.0
    return passes if missed else 0
