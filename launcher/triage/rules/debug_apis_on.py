"""A debugging aid was left on: anomaly detection, the autograd profiler, blocking launches, a tracer.

What it means
    Each operation is recorded with its stack, or each kernel waited for. Useful for an hour, expensive for a month.

How it is recognised
    Frames that format a stack below forward code (anomaly detection), profiler frames in every step, CUDA_LAUNCH_BLOCKING in the
    environment, or a tracer attached to the process.

What it is mistaken for
    Logging of a traceback: not below forward code. Our own looks: py-spy attaches no tracer.

What to do next
    Take ``set_detect_anomaly``, the profiler or the variable out.
"""

from perfwatch.probes.readings import ProcessUsage, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show, tags
from perfwatch.triage.gpu import regimes
from perfwatch.triage.profile import Profile
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS, certainty, slow, working
from perfwatch.triage.verdict import Alternative, Evidence, Outcome

CAUSE = Cause("debug_apis_on", "slow", "user_code", (Stack,))

STACKS_SHARE = 0.08  # of samples in the formatting of stacks: a healthy loop formats none
PROFILER_SHARE = 0.1
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
            lost = max(
                lost, *(card.waiting for card in cards), 0.0
            )  # each launch waits for its kernel, and the card for the next
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
            confidence=max(0.85, certainty(lost)),
            frame=frame,
            summary=f"a debugging aid is on: {evidence[0].claim} ({evidence[0].observed})"
            + (f" at {show(frame)}" if frame else ""),
            evidence=tuple(evidence),
            alternatives=(
                Alternative(cause="host_bound_python", refuted_by="the time goes into the debugging aid's own frames"),
            ),
            next=("take torch.autograd.set_detect_anomaly, the profiler or the variable out",),
        )
    return None


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
