"""Python that is no training: other work between steps, what torch calls back within them, and native profiles of it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.own_work import in_comprehension
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import LATELY_SECONDS, LOST_SHARE, NEARLY_ALL, NOTABLE
from perfwatch.triage.words.code import is_plain, line_of
from perfwatch.triage.words.frames import inner_tags, is_user, of_torch, short_name
from perfwatch_probes.readings import Frame, Stack, Steps

OWN_SHARE = 0.35  # of samples outside of training code: loops that log, count and move batches stay below 0.2
# Dumps; with small operations of torch a thread is without the GIL in 80 to 100 % of them, so four with it for one without tell Python.
# Of work between steps it takes six: a dump may be torn, or a step be made.
OWNED_LOOKS, OWNED_PER_RELEASED = 4, 6


def gil_samples(seen: Profile, holds: Callable[[Stack], bool]) -> tuple[int, int]:
    """Dumps that found a thread at some work and with the GIL, and without it."""
    known = seen.where(lambda stack: stack.owns_gil is not None and holds(stack))
    owned = known.count(lambda stack: bool(stack.owns_gil))
    return owned, known.samples - owned


def keeps_gil(seen: Profile, holds: Callable[[Stack], bool]) -> bool:
    """True if nearly each dump of several that found a thread at some work saw it own the GIL: it is no arithmetic of torch."""
    owned, released = gil_samples(seen, holds)
    return owned >= OWNED_LOOKS and owned >= OWNED_PER_RELEASED * released


def mode_on(case: Case, rank: Member, mode: str) -> bool | None:
    """True if something was on in torch after the newest step, as the agent reports; None without an agent.

    What is switched on for a part of each step only, may be off by then.
    """
    seen = case.history.latest(Steps, rank.pid)
    return None if seen is None or seen.reading.modes is None else mode in seen.reading.modes


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
HOOK_CALLERS = _CALLERS[:2] + _CALLERS[3:5]  # a function with a backward of its own may be the model itself
_DECORATES = "torch/utils/_contextlib.py"  # torch.no_grad around a hook


@dataclass(frozen=True)
class CalledBack:
    """What a training thread does there in Python."""

    share: float  # of the samples
    frame: Frame  # the program's own, that torch called
    owned: int  # dumps that found the thread there and with the GIL
    released: int  # and without

    @property
    def is_python(self) -> bool:
        """True if it is a good part of the time, and nothing speaks against its being Python that computes there."""
        return self.share >= LOST_SHARE and self.owned >= OWNED_LOOKS * self.released


def called_back(stack: Stack) -> Frame | None:
    """The frame of the program that torch called back, where nothing of torch runs below it; else None."""
    return path[-1] if (path := callback_path(stack)) else None


def hook_of(stack: Stack) -> Frame | None:
    """The hook of the program's own that a stack is in, or below, whatever runs there; None where it is in none."""
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    return next((frame for frame, caller in pairs if is_user(frame) and calls_back(caller, frame, HOOK_CALLERS)), None)


def callback_path(stack: Stack) -> tuple[Frame, ...]:
    """The frames below torch's, innermost first, the one that it called last; empty where torch called nothing back."""
    for index, frame in enumerate(stack.frames):
        if of_torch(frame) and not (index and frame.file.endswith(_DECORATES)):
            path = tuple(one for one in stack.frames[:index] if not of_torch(one))
            return path if path and is_user(path[-1]) and calls_back(frame, path[-1]) else ()
    return ()


def calls_back(caller: Frame, callee: Frame, callers: Callers = _CALLERS) -> bool:
    """True if a frame of torch calls one of the program's, by a way in ``callers``."""
    return any(
        caller.file.endswith(file)
        and (functions is None or short_name(caller.function) in functions)
        and short_name(callee.function) != other
        for file, functions, other in callers
    )


def python_called_back(case: Case, rank: Member) -> CalledBack | None:
    """How much of a training thread's time goes into such loops of Python, and where most of it; None without any."""
    return case.history.once(("called_back", rank.pid), lambda: _called_back(case, rank))


def _called_back(case: Case, rank: Member) -> CalledBack | None:
    seen, ever = case.profile(rank, LATELY_SECONDS), case.profile(rank)
    callees = {(frame.function, frame.file) for frame in ever.frames(called_back)}
    moves = {callee for callee in callees if _moves(case.history, ever, callee)}

    def within(stack: Stack) -> bool:
        path = callback_path(stack)
        return bool(path) and (path[-1].function, path[-1].file) in moves and _turns(case.history, stack, path)

    frame = seen.where(within).commonest(called_back)
    return None if frame is None else CalledBack(seen.share_where(within), frame, *gil_samples(ever, within))


def _turns(history: History, stack: Stack, path: tuple[Frame, ...]) -> bool:
    """True if a loop of the program's is on the way to where a stack stands, and no work that has a name of its own."""
    lines = ((frame, line_of(history, frame)) for frame in path if is_user(frame))
    loops = any(in_comprehension(history, frame) or (line is not None and bool(line.loops)) for frame, line in lines)
    return loops and not inner_tags(stack)


def _moves(history: History, seen: Profile, callee: tuple[str, str]) -> bool:
    """True if what was called back is seen on several ways through its lines, and at some at which nothing but Python runs.

    Of a comprehension only one line shows.
    """
    ways: Counter[tuple[Frame, ...]] = Counter()
    plain = inlined = 0
    for one in seen.sights:
        path = callback_path(one.reading)
        if path and (path[-1].function, path[-1].file) == callee and _turns(history, one.reading, path):
            ways[path] += one.reading.samples
            plain += one.reading.samples if is_plain(history, path[0]) else 0
            inlined += one.reading.samples if in_comprehension(history, path[0]) else 0
    total = sum(ways.values())
    several = total > 0 and max(ways.values()) < NEARLY_ALL * total
    return plain > NOTABLE * total and (several or inlined > NEARLY_ALL * total)
