"""Debugging aids that are on in a rank, the traces that they leave, and what they cost there."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import HIGH, LATELY_SECONDS, MOSTLY, NOTABLE
from perfwatch.triage.slowness import LOST_SHARE, NOTED, noted
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import show, tags, user_frames
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Frame, ProcessUsage, Stack, Steps

PROFILERS = frozenset(("torch.profiler.profile", "torch.autograd.profiler.profile", "autograd.profiler.profile"))
PROFILERS_OWN = frozenset("activities record_shapes profile_memory with_stack with_flops with_modules".split())
SCHEDULES = frozenset({"schedule", "enabled", "**"})
ANOMALY = frozenset({"set_detect_anomaly", "detect_anomaly"})
ANOMALY_SHARE = 0.03  # of the samples
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
    return max((card.waiting for card in regimes(case.history, rank.pid, LATELY_SECONDS)), default=0.0)


def weighed(case: Case, rank: Member) -> bool:
    """True if it is known how long the cards of the rank wait for their host: they were sampled, or there is none."""
    return bool(regimes(case.history, rank.pid, LATELY_SECONDS)) or not cards_of(case.history, rank.pid).uuids


def recorded_for_good(case: Case, seen: Profile) -> Frame | None:
    """The line of the training thread that mostly stands inside a profiler which records every step."""
    return _line_inside(case, seen, _profiles_all)


def anomaly_around(case: Case, seen: Profile) -> Frame | None:
    """The line that mostly stands inside a ``with`` that switches anomaly detection (or off: its argument is not known)."""
    return _line_inside(case, seen, lambda entered: entered.partition("(")[0].rpartition(".")[2] in ANOMALY)


def _line_inside(case: Case, seen: Profile, enters: Callable[[str], bool]) -> Frame | None:
    inside: Counter[Frame] = Counter()
    for one in seen.sights:
        for frame in user_frames(one.reading):
            line = line_of(case.history, frame)
            if line is not None and any(map(enters, line.within)):
                inside[frame] += one.reading.samples
                break
    return inside.most_common(1)[0][0] if inside.total() >= MOSTLY * seen.samples and inside else None


def _profiles_all(entered: str) -> bool:
    """True if a ``with`` enters torch's profiler for good: a schedule, the second argument, lets it rest between windows."""
    name, _, given = entered.rstrip(")").partition("(")
    words = given.split(", ")
    known = name in PROFILERS or bool(PROFILERS_OWN & set(words))  # a trainer's own profiler has a ``profile`` as well
    return name.rpartition(".")[2] == "profile" and known and words.count("*") < 2 and not SCHEDULES & set(words)


def formats_stacks(seen: Profile) -> float:
    """Share of the samples in which a stack is formatted for an operation, as anomaly detection does."""
    return seen.share("format_stack", "anomaly")


def mode_on(case: Case, rank: Member, mode: str) -> bool | None:
    """True if something was on in torch after the newest step, as the agent reports; None without an agent.

    What is switched on for a part of each step only, may be off by then.
    """
    seen = case.history.latest(Steps, rank.pid)
    return None if seen is None or seen.reading.modes is None else mode in seen.reading.modes


def anomaly_on(case: Case, rank: Member, seen: Profile) -> bool:
    """True if anomaly detection is known to be on: by the agent, or by its own frames (which compiling has as well)."""
    return bool(mode_on(case, rank, "anomaly_detection")) or seen.share_where(_of_anomaly) >= ANOMALY_SHARE


def _of_anomaly(stack: Stack) -> bool:
    return tags(stack) >= {"anomaly", "format_stack"} and "compile" not in tags(stack)


def profiles(stack: Stack) -> bool:
    """True if a stack is in a profiler's own frames (not in a record_function that is part of every optimizer step)."""
    names = {
        frame.function.rsplit(".", 1)[-1]
        for frame in stack.frames
        if "profiler" in tags(Stack(pid=0, tid=0, frames=(frame,)))
    }
    return bool(names - {"__enter__", "__exit__", "__init__", "record_function"}) or "_parse_kineto_results" in names


FEWER_STACKS = 0.05  # where they are known to be anomaly detection's
BLOCKING = "CUDA_LAUNCH_BLOCKING"


@dataclass(frozen=True)
class Aid:
    """One aid that is on.

    Args:
        evidence: the trace that it leaves.
        lost: the share of the time that it takes, as far as that is seen.
        explains: the share of the time that it explains, where that is more than it takes itself.
        sure: how sure it is that it costs anything.
        line: the line of the program that it works at, where only the aid itself knows it.
        around: the line around which it was switched on.
    """

    evidence: Evidence
    lost: float = 0.0
    explains: float = 0.0
    sure: float = NOTED
    line: Frame | None = None
    around: Frame | None = None


def aids(case: Case, rank: Member, seen: Profile) -> tuple[Aid, ...]:
    """All that are on in a rank, the best seen first."""
    found = (_anomaly(case, rank, seen), _profiler(case, rank, seen), _blocking(case, rank))
    return tuple(aid for aid in (*found, _for_good(case, seen), _tracer(case, rank)) if aid is not None)


def _anomaly(case: Case, rank: Member, seen: Profile) -> Aid | None:
    formatting, known, pid = formats_stacks(seen), anomaly_on(case, rank, seen), f"pid {rank.pid}"
    held = min(waiting(case, rank), formatting + seen.share("backward")) if known else 0.0
    if formatting >= (FEWER_STACKS if known else NOTABLE):
        what, share = (
            "anomaly detection formats a stack for each operation",
            f"{formatting:.0%} of {seen.samples} samples",
        )
        found = case.saw("stack", pid, what, share, "0 %")
        return Aid(found, formatting, held, HIGH, around=anomaly_around(case, seen))
    if held >= LOST_SHARE and mode_on(case, rank, "anomaly_detection"):
        found = case.saw("agent", pid, "anomaly detection is on", "after the newest step", "off")
        return Aid(found, held, sure=HIGH, around=anomaly_around(case, seen))
    return None


def _profiler(case: Case, rank: Member, seen: Profile) -> Aid | None:
    share = seen.share_where(profiles)
    if share < NOTABLE:
        return None
    observed = f"{share:.0%} of {seen.samples} samples"
    return Aid(case.saw("stack", f"pid {rank.pid}", "a profiler runs in the loop", observed, "0 %"), share, sure=HIGH)


def _blocking(case: Case, rank: Member) -> Aid | None:
    if case.job.members[rank.pid].process.environment.get(BLOCKING) != "1":
        return None
    lost = waiting(case, rank)  # each launch waits for its kernel, and the card for the next
    found = case.saw("environment", f"pid {rank.pid}", f"{BLOCKING} is set", "1", "unset")
    return Aid(found, lost, sure=noted(lost if weighed(case, rank) else None, HIGH))


def _for_good(case: Case, seen: Profile) -> Aid | None:
    always = recorded_for_good(case, seen)
    if not always:
        return None
    found = case.saw("source", show(always) or "", "the loop runs inside torch's profiler", "no schedule", "none")
    return Aid(found, sure=HIGH, line=always)


def _tracer(case: Case, rank: Member) -> Aid | None:
    usage = case.history.latest(ProcessUsage, rank.pid)
    if usage is None or not usage.reading.tracer_pid:
        return None
    tracer = f"TracerPid {usage.reading.tracer_pid}"
    return Aid(case.saw("usage", f"pid {rank.pid}", "a tracer is attached", tracer, "0", usage.at))
