"""A process of the job is stopped: by a signal, a tracer, or a frozen control group."""

from itertools import pairwise, takewhile

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.history import Seen
from perfwatch.triage.patience import DECISIVE_SECONDS
from perfwatch.triage.ranks.groups import unanswered
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.verdict import Finding, Outcome
from perfwatch_probes.readings import Cgroup, ProcessUsage, Thread

CAUSE = Cause("stopped", "hung", "user_code", (Thread,))

RATIONED_SECONDS = 5.0  # of one that was let go on before: the pauses of a ration are far shorter


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a stopped or traced thread, or in a frozen group."""
    for chain in case.chains.values():
        if chain.end.kind in ("stopped", "traced") and (found := _finding(case, chain)) is not None:
            return found
    frozen = [
        seen
        for key in case.history.entities(Cgroup)
        if (seen := case.history.latest(Cgroup, *key)) and seen.reading.frozen
    ]
    for chain in case.chains.values() if frozen else ():
        return hung(
            case,
            CAUSE.name,
            chain,
            owner="scheduler",
            summary=f"the control group {frozen[0].reading.path} is frozen",
            patience=DECISIVE_SECONDS,
            evidence=(
                case.saw("cgroup", frozen[0].reading.path, "the freezer is on", "FROZEN", "THAWED", frozen[0].at),
            ),
            next=("thaw the group, or ask the scheduler why it froze it",),
        )
    return None


def _is_stopped(look: Seen[Thread]) -> bool:
    return look.reading.state in ("T", "t")


def _ran(earlier: Thread, later: Thread) -> bool:
    """Whether a thread that was stopped at two looks was let go on in between: who is stopped does not run."""
    return (earlier.run_seconds, earlier.voluntary_switches) != (later.run_seconds, later.voluntary_switches)


def _finding(case: Case, chain: Chain) -> Finding | None:
    node = chain.end.node
    stopped = list(takewhile(_is_stopped, reversed(case.history.series(Thread, node.pid, node.tid))))
    again = next((n for n, (later, one) in enumerate(pairwise(stopped), 1) if _ran(one.reading, later.reading)), None)
    looks = stopped[:again]
    usage = case.history.latest(ProcessUsage, node.pid)
    tracer = usage.reading.tracer_pid if usage else 0
    seen_for = case.at - looks[-1].at if looks else 0.0
    if again is not None and max(seen_for, node.motion.ran_ago_seconds or 0.0) < RATIONED_SECONDS:
        return None
    by = f" by process {tracer}" if tracer else ""
    return hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} is {'traced' if node.state == 't' or tracer else 'stopped'}{by} (state {node.state})",
        patience=DECISIVE_SECONDS,
        silent=max(seen_for, node.motion.ran_ago_seconds or 0.0),  # it ran until it was stopped, in one line or in many
        evidence=(
            case.saw(
                "state",
                f"pid {node.pid}",
                "is stopped",
                f"state {node.state} in {len(looks)} looks, TracerPid {tracer}",
                "R or S",
            ),
            *unanswered(case),
        ),
        next=(f"kill -CONT {node.pid}" if not tracer else f"ps -o pid,user,args -p {tracer}",),
    )


RULES = (Rule(CAUSE, judge),)
