"""A debugging aid was left on: anomaly detection, the autograd profiler, blocking launches, a tracer.

What it means
    Each operation is recorded with its stack, or each kernel waited for. Useful for an hour, expensive for a month.

How it is recognised
    Frames that format a stack below forward code (anomaly detection), profiler frames in every step, CUDA_LAUNCH_BLOCKING in the
    environment, a tracer attached to the process, or a loop inside ``with torch.profiler.profile(...)`` without a schedule.

What it is mistaken for
    Logging of a traceback: not below forward code. Our own looks: py-spy attaches no tracer.

What to do next
    Take ``set_detect_anomaly``, the profiler or the variable out.
"""

from collections import Counter

from perfwatch.probes.readings import Frame, ProcessUsage, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.code import line_of
from perfwatch.triage.frames import show, tags, user_frames
from perfwatch.triage.gpu import regimes
from perfwatch.triage.profile import Profile
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS, certainty, slow, working
from perfwatch.triage.verdict import Alternative, Evidence, Outcome

CAUSE = Cause("debug_apis_on", "slow", "user_code", (Stack,))

STACKS_SHARE = 0.08  # of samples in the formatting of stacks: a healthy loop formats none
PROFILER_SHARE = 0.1
PROFILERS = frozenset(("torch.profiler.profile", "torch.autograd.profiler.profile", "autograd.profiler.profile"))
PROFILERS_OWN = frozenset("activities record_shapes profile_memory with_stack with_flops with_modules".split())
RESTS = frozenset({"schedule", "enabled", "**"})
SEEN, UNWEIGHED = 0.85, 0.75  # nobody can tell from outside what a profiler costs whose frames are never seen
MOSTLY = 0.5  # of the samples: a few profiled steps before a long run are no matter
BLOCKING = "CUDA_LAUNCH_BLOCKING"


def judge(case: Case) -> Outcome:
    """Fires on the traces that each debugging aid leaves."""
    for rank, seen in working(case):
        evidence: list[Evidence] = []
        lost = 0.0
        formatting, profiling = _formats(seen), seen.share_where(profiles)
        if formatting >= STACKS_SHARE:
            lost = formatting
            evidence.append(
                case.saw(
                    "stack",
                    f"pid {rank.pid}",
                    "anomaly detection formats a stack for each operation",
                    f"{formatting:.0%} of {seen.samples} samples",
                    "0 %",
                )
            )
        if profiling >= PROFILER_SHARE:
            lost = max(lost, profiling)
            evidence.append(
                case.saw(
                    "stack",
                    f"pid {rank.pid}",
                    "a profiler runs in the loop",
                    f"{profiling:.0%} of {seen.samples} samples",
                    "0 %",
                )
            )
        if case.job.members[rank.pid].process.environment.get(BLOCKING) == "1":
            evidence.append(case.saw("environment", f"pid {rank.pid}", f"{BLOCKING} is set", "1", "unset"))
            cards = regimes(case.history, rank.pid, WINDOW_SECONDS)
            # Each launch waits for its kernel, and the card for the next.
            lost = max(lost, *(card.waiting for card in cards), 0.0)
        if always := _recorded(case, seen):
            evidence.append(
                case.saw("source", show(always) or "", "the loop runs inside torch's profiler", "no schedule", "none")
            )
        usage = case.history.latest(ProcessUsage, rank.pid)
        if usage is not None and usage.reading.tracer_pid:
            evidence.append(
                case.saw(
                    "usage",
                    f"pid {rank.pid}",
                    "a tracer is attached",
                    f"TracerPid {usage.reading.tracer_pid}",
                    "0",
                    usage.at,
                )
            )
        if not evidence or seen.samples < FEW_SAMPLES:
            continue
        frame = seen.top_line(lambda stack: "format_stack" in tags(stack) or profiles(stack))
        return slow(
            case,
            CAUSE,
            rank,
            lost=lost,
            confidence=max(SEEN if lost or not always else UNWEIGHED, certainty(lost)),
            frame=frame or always,
            summary=f"a debugging aid is on: {evidence[0].claim} ({evidence[0].observed})"
            + (f" at {show(frame)}" if frame else ""),
            evidence=tuple(evidence),
            alternatives=(
                Alternative(
                    cause="host_bound_python",
                    refuted_by="the time goes into the debugging aid's own frames"
                    if lost
                    else "it is on, whatever it costs",
                ),
            ),
            next=("take torch.autograd.set_detect_anomaly, the profiler or the variable out",),
        )
    return None


def _recorded(case: Case, seen: Profile) -> Frame | None:
    """The line of the training thread that mostly stands inside a profiler which records every step."""
    inside: Counter[Frame] = Counter()
    for one in seen.sights:
        for frame in user_frames(one.reading):
            line = line_of(case.history, frame)
            if line is not None and any(_profiles_all(entered) for entered in line.within):
                inside[frame] += one.reading.samples
                break
    return inside.most_common(1)[0][0] if inside.total() >= MOSTLY * seen.samples and inside else None


def _profiles_all(entered: str) -> bool:
    """Whether a ``with`` enters torch's profiler for good: a schedule, the second argument, lets it rest between windows."""
    name, _, given = entered.rstrip(")").partition("(")
    words = given.split(", ")
    known = name in PROFILERS or bool(PROFILERS_OWN & set(words))  # a trainer's own profiler has a ``profile`` as well
    return name.rpartition(".")[2] == "profile" and known and words.count("*") < 2 and not RESTS & set(words)


def _formats(seen: Profile) -> float:
    return seen.share("format_stack", "anomaly")


def profiles(stack: Stack) -> bool:
    """Whether a stack is in a profiler's own frames (not in a record_function that is part of every optimizer step)."""
    names = {
        frame.function.rsplit(".", 1)[-1]
        for frame in stack.frames
        if "profiler" in tags(Stack(pid=0, tid=0, frames=(frame,)))
    }
    return bool(names - {"__enter__", "__exit__", "__init__", "record_function"}) or "_parse_kineto_results" in names
