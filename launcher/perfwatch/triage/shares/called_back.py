"""Python of the program's own that torch calls back: hooks of tensors, modules and optimizers, functions with a
backward and optimizers with a step of their own.

By its outer frames it is training. What computes there in Python, and is no arithmetic of torch's, turns in a loop, moves from
line to line in it and keeps the GIL. A native extension may keep the GIL as well: it stands at the one line that calls it. What a hook
does in a library that is none of torch's (numpy, say) is no arithmetic of the model's either.
"""

from collections import Counter
from dataclasses import dataclass

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.native import interpreter_share
from perfwatch.triage.shares.own_work import in_comprehension
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import LOST_SHARE, NOTED, WINDOW_SECONDS, certainty, slow, working
from perfwatch.triage.words.code import is_plain, line_of
from perfwatch.triage.words.frames import inner_tags, is_standard, is_user, of_torch, short_name, show
from perfwatch.verdict import Alternative, Finding
from perfwatch_probes.readings import Frame, Stack

Callers = tuple[tuple[str, frozenset[str] | None, str | None], ...]
# Frames of torch that call what the program registered, and what else of the program they call: that is no hook.
_CALLERS: Callers = (
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), None),
    ("torch/autograd/__init__.py", frozenset({"backward", "grad"}), None),  # before torch 2.3
    ("torch/autograd/function.py", frozenset({"apply"}), None),
    ("torch/utils/hooks.py", None, None),
    ("torch/nn/modules/module.py", frozenset({"inner"}), "forward"),
    # Hooks, and the step of an optimizer of the program's own.
    ("torch/optim/optimizer.py", frozenset({"wrapper"}), None),
)
_HOOKS = _CALLERS[:2] + _CALLERS[3:5]  # a function with a backward of its own may be the model itself
_DECORATES = "torch/utils/_contextlib.py"  # torch.no_grad around a hook
ONE_PATH = 0.9  # of the samples: it stands at one call, and turns in no loop of Python's
OWNED_PER_RELEASED = 4  # dumps; small operations of torch are without the GIL in 80 to 100 % of them (see other_work)
INTERPRETED = 0.2  # of the samples there; the rest is in functions of the interpreter that bear any name
PLAIN = 0.15  # of the samples there: at lines that call nothing, or builtins: Python alone
FEW_DUMPS = 2  # with the GIL: fewer are chance
SURE_BY_DUMPS = {2: 0.8, 3: 0.87}
SURE = 0.92  # by more, or by a native profile as well
SURE_OF_LIBRARIES = 0.75  # what a hook computes with them may be meant
RETURNS = 3  # stretches, at least, of what is done in each step


@dataclass(frozen=True)
class CalledBack:
    """What a training thread does there in Python."""

    share: float  # of the samples
    frame: Frame  # the program's own, that torch called
    owned: int  # dumps that found the thread there and with the GIL
    released: int  # and without
    interpreted: float | None  # share of a native profile of the whole thread in the interpreter

    @property
    def is_python(self) -> bool:
        """Whether it is a good part of the time, and nothing speaks against its being Python that computes there."""
        agrees = self.interpreted is None or self.interpreted >= INTERPRETED * self.share
        return self.share >= LOST_SHARE and agrees and self.owned >= OWNED_PER_RELEASED * self.released


def holds_up_steps(case: Case, cause: Cause) -> Finding | None:
    """Fires on a rank without work for a card whose steps are held up by Python that torch calls back."""
    found = [(rank, seen, one) for rank, seen in working(case) if (one := _without_a_card(case, rank)) is not None]
    if not found:
        return _in_libraries(case, cause)
    rank, seen, one = max(found, key=lambda each: each[2].share)
    frame, few = show(one.frame), one.owned < FEW_DUMPS
    inner = show(seen.top_line(lambda stack: called_back(stack) == one.frame))
    at = f", mostly at {inner}" if inner != frame else ""
    sure = NOTED if few else SURE if one.interpreted is not None else SURE_BY_DUMPS.get(one.owned, SURE)
    return slow(
        case,
        cause,
        rank,
        lost=one.share,
        frame=one.frame,
        confidence=min(certainty(one.share), sure),
        decides_in_seconds=max(0.0, WINDOW_SECONDS - seen.seconds) if few else 0.0,
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
            confidence=SURE_OF_LIBRARIES,
            summary=f"a hook that torch calls within each step computes {share:.0%} of the time, mostly at {show(frame)}, and not in torch",
            evidence=(
                case.saw(
                    "stack",
                    f"pid {rank.pid}",
                    "is in another library than torch below a hook",
                    f"{share:.0%} of {seen.samples} samples",
                    "arithmetic of torch",
                ),
            ),
            alternatives=(Alternative(cause="cpu_training", refuted_by="it is not torch that computes there"),),
            next=(f"let {show(frame)} look at fewer steps, or at less, or with tensors",),
        )
    return None


def _hooked_library(stack: Stack) -> bool:
    """Whether a stack is in a library, neither torch's nor the standard one, that a hook of the program called."""
    path = _path(stack)
    if not path or is_user(path[0]) or is_standard(path[0]) or inner_tags(stack):
        return False
    return _calls_back(stack.frames[stack.frames.index(path[-1]) + 1], path[-1], _HOOKS)


def _uses_a_card(case: Case, rank: Member) -> bool:
    return any(card.kind != "idle" or card.returns for card in regimes(case.history, rank.pid, WINDOW_SECONDS))


def _without_a_card(case: Case, rank: Member) -> CalledBack | None:
    """What is Python there, of a rank whose cards, if it has any, are given nothing to do: else they tell what it costs."""
    if _uses_a_card(case, rank):
        return None
    found = python_called_back(case, rank)
    return found if found is not None and found.is_python else None


def called_back(stack: Stack) -> Frame | None:
    """The frame of the program that torch called back, where nothing of torch runs below it; else None."""
    return path[-1] if (path := _path(stack)) else None


def hook_of(stack: Stack) -> Frame | None:
    """The hook of the program's own that a stack is in, or below, whatever runs there; None where it is in none."""
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    return next((frame for frame, caller in pairs if is_user(frame) and _calls_back(caller, frame, _HOOKS)), None)


def python_called_back(case: Case, rank: Member) -> CalledBack | None:
    """How much of a training thread's time goes into such loops of Python, and where most of it; None without any."""
    return case.history.once(("called_back", rank.pid), lambda: _python(case, rank))


def _path(stack: Stack) -> tuple[Frame, ...]:
    """The frames below torch's, innermost first, the one that it called last; empty where torch called nothing back."""
    for index, frame in enumerate(stack.frames):
        if of_torch(frame) and not (index and frame.file.endswith(_DECORATES)):
            path = tuple(one for one in stack.frames[:index] if not of_torch(one))
            return path if path and is_user(path[-1]) and _calls_back(frame, path[-1]) else ()
    return ()


def _calls_back(caller: Frame, callee: Frame, callers: Callers = _CALLERS) -> bool:
    return any(
        caller.file.endswith(file)
        and (functions is None or short_name(caller.function) in functions)
        and short_name(callee.function) != other
        for file, functions, other in callers
    )


def _python(case: Case, rank: Member) -> CalledBack | None:
    seen, ever = case.profile(rank, WINDOW_SECONDS), case.profile(rank)
    callees = {(frame.function, frame.file) for one in ever.sights if (frame := called_back(one.reading))}
    moves = {callee for callee in callees if _moves(case.history, ever, callee)}

    def within(stack: Stack) -> bool:
        path = _path(stack)
        return bool(path) and (path[-1].function, path[-1].file) in moves and _turns(case.history, stack, path)

    if not (share := seen.share_where(within)):
        return None
    at: Counter[Frame] = Counter()
    for one in seen.sights:
        if within(one.reading):
            at[_path(one.reading)[-1]] += one.reading.samples
    known = [one.reading for one in ever.sights if one.reading.owns_gil is not None and within(one.reading)]
    owned = sum(stack.samples for stack in known if stack.owns_gil)
    released = sum(stack.samples for stack in known if not stack.owns_gil)
    return CalledBack(share, at.most_common(1)[0][0], owned, released, interpreter_share(case, rank))


def _turns(history: History, stack: Stack, path: tuple[Frame, ...]) -> bool:
    """Whether a loop of the program's is on the way to where a stack stands, and no work that has a name of its own."""
    if inner_tags(stack):
        return False
    own = [frame for frame in path if is_user(frame)]
    return any(
        in_comprehension(history, frame) or bool((line := line_of(history, frame)) and line.loops) for frame in own
    )


def _moves(history: History, seen: Profile, callee: tuple[str, str]) -> bool:
    """Whether what was called back is seen on several ways through its lines, and at some at which nothing but Python runs.

    Of a comprehension only one line shows.
    """
    ways: Counter[tuple[Frame, ...]] = Counter()
    plain = inlined = 0
    for one in seen.sights:
        path = _path(one.reading)
        if path and (path[-1].function, path[-1].file) == callee and _turns(history, one.reading, path):
            ways[path] += one.reading.samples
            plain += one.reading.samples if is_plain(history, path[0]) else 0
            inlined += one.reading.samples if in_comprehension(history, path[0]) else 0
    total = sum(ways.values())
    several = total > 0 and max(ways.values()) < ONE_PATH * total
    return plain > PLAIN * total and (several or inlined > ONE_PATH * total)
