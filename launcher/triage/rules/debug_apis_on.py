"""A debugging aid was left on: anomaly detection, the autograd profiler, blocking launches, a tracer.

What it means
    Each operation is recorded with its stack, or each kernel waited for. Useful for an hour, expensive for a month. Anomaly
    detection does both: after every operation of the backward pass the host waits for the card, to look for a NaN in the result.

How it is recognised
    Frames that format a stack below forward code, or the agent's word (anomaly detection), profiler frames in every step,
    CUDA_LAUNCH_BLOCKING in the environment, a tracer attached to the process, ncu or compute-sanitizer above it (``run --arm
    ncu`` included), or a loop inside ``with torch.profiler.profile(...)`` without a schedule.

What it is mistaken for
    Logging of a traceback: not below forward code. Our own looks: py-spy attaches no tracer. A variable or a tracer that is
    there and costs nothing that could be measured: that is noted.

What to do next
    Take ``set_detect_anomaly``, the profiler, the variable or the tool out.
"""

from perfwatch.probes.readings import ProcessUsage, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.debugging import (
    anomaly_around,
    anomaly_on,
    formats_stacks,
    mode_on,
    profiles,
    recorded_for_good,
    tool_above,
    waiting,
    weighed,
)
from perfwatch.triage.slowness import FEW_SAMPLES, LOST_SHARE, NOTED, certainty, noted, slow, working
from perfwatch.triage.verdict import Alternative, Evidence, Finding, Outcome
from perfwatch.triage.words.frames import show, tags

CAUSE = Cause("debug_apis_on", "slow", "user_code", (Stack,))

STACKS_SHARE = 0.08  # of samples in the formatting of stacks: a healthy loop formats none
FEWER_STACKS = 0.05  # where they are known to be anomaly detection's
PROFILER_SHARE = 0.1
RESIDUE = 0.6  # a cause that says what the host waits for is the better answer; that Python is slow is not
SEEN, UNWEIGHED = 0.85, 0.75  # nobody can tell from outside what a profiler costs whose frames are never seen
BLOCKING = "CUDA_LAUNCH_BLOCKING"


def judge(case: Case) -> Outcome:
    """Fires on the traces that each debugging aid leaves."""
    for rank, seen in working(case):
        pid, samples = f"pid {rank.pid}", f"{seen.samples} samples"
        evidence: list[Evidence] = []
        lost = explains = 0.0
        around = None
        formatting, profiling = formats_stacks(seen), seen.share_where(profiles)
        known = anomaly_on(case, rank, seen)
        held = min(waiting(case, rank), formatting + seen.share("backward")) if known else 0.0
        if formatting >= (FEWER_STACKS if known else STACKS_SHARE):
            lost, explains = formatting, held
            around = anomaly_around(case, seen)
            evidence.append(
                case.saw(
                    "stack",
                    pid,
                    "anomaly detection formats a stack for each operation",
                    f"{formatting:.0%} of {samples}",
                    "0 %",
                )
            )
        elif held >= LOST_SHARE and mode_on(case, rank, "anomaly_detection"):
            lost = held
            around = anomaly_around(case, seen)
            evidence.append(case.saw("agent", pid, "anomaly detection is on", "after the newest step", "off"))
        if profiling >= PROFILER_SHARE:
            lost = max(lost, profiling)
            evidence.append(
                case.saw("stack", pid, "a profiler runs in the loop", f"{profiling:.0%} of {samples}", "0 %")
            )
        sure = SEEN if evidence else NOTED
        if case.job.members[rank.pid].process.environment.get(BLOCKING) == "1":
            evidence.append(case.saw("environment", pid, f"{BLOCKING} is set", "1", "unset"))
            lost = max(lost, waiting(case, rank))  # each launch waits for its kernel, and the card for the next
            sure = max(sure, noted(lost if weighed(case, rank) else None, SEEN))
        if always := recorded_for_good(case, seen):
            sure = max(sure, UNWEIGHED)
            evidence.append(
                case.saw("source", show(always) or "", "the loop runs inside torch's profiler", "no schedule", "none")
            )
        usage = case.history.latest(ProcessUsage, rank.pid)
        if usage is not None and usage.reading.tracer_pid:
            tracer = f"TracerPid {usage.reading.tracer_pid}"
            evidence.append(case.saw("usage", pid, "a tracer is attached", tracer, "0", usage.at))
        if seen.samples < FEW_SAMPLES:
            continue
        if not evidence:
            if (tool := tool_above(case, rank)) and waiting(case, rank) >= LOST_SHARE:
                return _under(case, rank, tool)
            continue
        frame = seen.top_line(lambda stack: "format_stack" in tags(stack) or profiles(stack))
        return slow(
            case,
            CAUSE,
            rank,
            lost=lost,
            explains=max(lost, explains),
            confidence=max(sure, certainty(lost)) if lost >= LOST_SHARE else sure,
            frame=frame or always,
            summary=f"a debugging aid is on: {evidence[0].claim} ({evidence[0].observed})"
            + (f" at {show(frame)}" if frame else "")
            + (f", switched on around {show(around)}" if around else ""),
            evidence=tuple(evidence),
            alternatives=(
                Alternative(
                    cause="host_bound_python",
                    refuted_by="it takes the time" if lost else "it is on, whatever it costs",
                ),
            ),
            next=("take torch.autograd.set_detect_anomaly, the profiler or the variable out",),
        )
    return None


def _under(case: Case, rank: Member, tool: str) -> Finding:
    """Each CUDA call of the rank passes through a tool, and its card waits for that, if for nothing else that is known."""
    lost = waiting(case, rank)
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        explains=RESIDUE * lost,
        confidence=min(SEEN, certainty(lost)),
        culprits=(),
        summary=f"the job runs under {tool}, through which every CUDA call passes; its GPU waits for the host {lost:.0%} of the time",
        evidence=(case.saw("process", f"pid {rank.pid}", f"runs under {tool}", "a process above it", "none"),),
        alternatives=(Alternative(cause="host_bound_python", refuted_by=f"what the host does passes through {tool}"),),
        next=(f"start it without {tool}, and look again",),
    )
