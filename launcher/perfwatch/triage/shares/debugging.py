"""What shows that a debugging aid is on: frames, lines of the program, and the processes above it."""

from collections import Counter
from collections.abc import Callable

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import tags, user_frames
from perfwatch_probes.readings import Frame, Stack, Steps

PROFILERS = frozenset(("torch.profiler.profile", "torch.autograd.profiler.profile", "autograd.profiler.profile"))
PROFILERS_OWN = frozenset("activities record_shapes profile_memory with_stack with_flops with_modules".split())
RESTS = frozenset({"schedule", "enabled", "**"})
ANOMALY = frozenset({"set_detect_anomaly", "detect_anomaly"})
ANOMALY_SHARE = 0.03  # of the samples
MOSTLY = 0.5  # of the samples: a few profiled steps before a long run are no matter
TOOLS = {  # by comm, which is cut to 15
    "ncu": "Nsight Compute (ncu)",
    "compute-sanitiz": "compute-sanitizer",
    "cuda-gdb": "cuda-gdb",
}


def tool_above(case: Case, rank: Member) -> str:
    """The tool, among the processes that started the rank, through which every one of its CUDA calls passes."""
    names = (one.process.name for one in case.job.lineage(rank.process.parent_pid))
    return next((TOOLS[name] for name in names if name in TOOLS), "")


def waiting(case: Case, rank: Member) -> float:
    """Share of the time that a card of the rank waits for its host."""
    return max((card.waiting for card in regimes(case.history, rank.pid, WINDOW_SECONDS)), default=0.0)


def weighed(case: Case, rank: Member) -> bool:
    """Whether it is known how long the cards of the rank wait for their host: nobody looked at them, or there is none."""
    return bool(regimes(case.history, rank.pid, WINDOW_SECONDS)) or not cards_of(case.history, rank.pid).uuids


def recorded_for_good(case: Case, seen: Profile) -> Frame | None:
    """The line of the training thread that mostly stands inside a profiler which records every step."""
    return _inside(case, seen, _profiles_all)


def anomaly_around(case: Case, seen: Profile) -> Frame | None:
    """The line that mostly stands inside a ``with`` that switches anomaly detection (or off: its argument is not known)."""
    return _inside(case, seen, lambda entered: entered.partition("(")[0].rpartition(".")[2] in ANOMALY)


def _inside(case: Case, seen: Profile, enters: Callable[[str], bool]) -> Frame | None:
    inside: Counter[Frame] = Counter()
    for one in seen.sights:
        for frame in user_frames(one.reading):
            line = line_of(case.history, frame)
            if line is not None and any(map(enters, line.within)):
                inside[frame] += one.reading.samples
                break
    return inside.most_common(1)[0][0] if inside.total() >= MOSTLY * seen.samples and inside else None


def _profiles_all(entered: str) -> bool:
    """Whether a ``with`` enters torch's profiler for good: a schedule, the second argument, lets it rest between windows."""
    name, _, given = entered.rstrip(")").partition("(")
    words = given.split(", ")
    known = name in PROFILERS or bool(PROFILERS_OWN & set(words))  # a trainer's own profiler has a ``profile`` as well
    return name.rpartition(".")[2] == "profile" and known and words.count("*") < 2 and not RESTS & set(words)


def formats_stacks(seen: Profile) -> float:
    """Share of the samples in which a stack is formatted for an operation, as anomaly detection does."""
    return seen.share("format_stack", "anomaly")


def mode_on(case: Case, rank: Member, mode: str) -> bool | None:
    """Whether something was on in torch after the newest step, as the agent tells; None where nobody told.

    What is switched on for a part of each step only, may be off by then.
    """
    seen = case.history.latest(Steps, rank.pid)
    return None if seen is None or seen.reading.modes is None else mode in seen.reading.modes


def anomaly_on(case: Case, rank: Member, seen: Profile) -> bool:
    """Whether anomaly detection is known to be on: by the agent, or by its own frames (which compiling has as well)."""
    return bool(mode_on(case, rank, "anomaly_detection")) or seen.share_where(_of_anomaly) >= ANOMALY_SHARE


def _of_anomaly(stack: Stack) -> bool:
    return tags(stack) >= {"anomaly", "format_stack"} and "compile" not in tags(stack)


def profiles(stack: Stack) -> bool:
    """Whether a stack is in a profiler's own frames (not in a record_function that is part of every optimizer step)."""
    names = {
        frame.function.rsplit(".", 1)[-1]
        for frame in stack.frames
        if "profiler" in tags(Stack(pid=0, tid=0, frames=(frame,)))
    }
    return bool(names - {"__enter__", "__exit__", "__init__", "record_function"}) or "_parse_kineto_results" in names
