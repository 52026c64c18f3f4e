"""Another process computes on the job's GPU."""

from perfwatch.triage.cards.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.neighbours import Neighbour, mps_servers, neighbours
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Abstention, Alternative, Missing, Outcome
from perfwatch_probes.readings import GpuProcess, Process

CAUSE = Cause("shared_gpu", "slow", "scheduler", (GpuProcess, Process))

TAKES = 0.1  # of the card, over ten seconds
SURE = 0.92
UNMEASURED = 0.55  # the driver does not tell how much it uses: noted, not blamed


def judge(case: Case) -> Outcome:
    """Fires on a neighbour that uses the card."""
    served: Abstention | None = None
    for one in accelerated(case):
        found = neighbours(case.history, one.card.uuid)
        busy = [other for other in found if other.share is not None and other.share >= TAKES]
        silent = [other for other in found if other.share is None]
        if not busy and not silent:
            served = served or _served(case, one)
            continue
        name = name_of(case.history, one.card.uuid)
        taken = min(1.0, sum(other.share or 0.0 for other in busy))
        who = ", ".join(_shown(other) for other in (busy or silent)[:3])
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=taken,
            explains=max(taken, 0.9 if busy else 0.0),
            confidence=SURE if busy else UNMEASURED,
            summary=f"{name} is shared: {who}" + (f" takes {taken:.0%} of it" if busy else " is on it too"),
            evidence=(
                case.saw("nvml", name, "a process outside the job computes there", who, "the job's own only"),
                monitored(case, one, "is busy for both", "busy for the job alone"),
            ),
            alternatives=(
                Alternative(cause="gpu_bound", refuted_by=f"{taken:.0%} of the card's work is not this job's"),
            ),
            next=("nvidia-smi names the process; give the job a card of its own",),
        )
    return served


def _served(case: Case, one: Accelerated) -> Abstention | None:
    servers = mps_servers(case.history, one.card.uuid)
    if not servers:
        return None
    reason = (
        f"the job uses {name_of(case.history, one.card.uuid)} through MPS: what its server, pid {servers[0]}, takes is the "
        "work of its clients, and of those only the job's own are listed"
    )
    return Abstention(cause=CAUSE.name, missing=(Missing(witness="nvml", reason=reason),))


def _shown(other: Neighbour) -> str:
    used = "" if other.share is None else f" ({other.share:.0%} of the card)"
    held = "" if other.memory_bytes is None else f", {other.memory_bytes / 2**30:.1f} GiB"
    return f"pid {other.pid}{used}{held}"


RULES = (Rule(CAUSE, judge),)
