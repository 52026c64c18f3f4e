"""One thread holds Python's global lock inside a native call, and all others wait for it."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, silent_seconds, who
from perfwatch.triage.moving.memory import Lull, lull
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.threads import gil_waiters
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("held_gil", "hung", "user_code", (Thread, Stack))

RUNNING = 0.78  # a native call that runs may end yet: only time speaks against it


def judge(case: Case) -> Outcome:
    """Fires on a chain that passes the GIL, or on a training thread that keeps it while others ask for it."""
    for chain in case.still_chains:
        if chain.through & {"loader", "pool"}:
            continue
        waiters = gil_waiters(case.history, case.job, chain.end.node)
        if "gil" not in chain.through and not waiters:
            continue
        if wakes_soon(case, chain.end) or chain.end.kind in ("storage", "uninterruptible", "network"):
            continue
        watched, patience = silent_seconds(case, chain), _patience(case, chain)
        rank = case.job.members[chain.start.pid]
        lasts = Lull(watched, (), 1.0) if chain.end.still else lull(case, rank, watched, patience)
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"{who(chain)} holds the GIL inside a native call and does not release it",
            patience=patience,
            silent=lasts.seconds,
            ceiling=lasts.ceiling if chain.end.still else RUNNING,
            evidence=(
                *lasts.evidence,
                case.saw(
                    "gil",
                    f"pid {chain.end.node.pid}",
                    "others ask for the GIL in vain",
                    f"{len(waiters) or 1} waiting, always owned by thread {chain.end.node.tid} at {show(chain.end.node.frame)}",
                    "the owner changes within milliseconds",
                ),
            ),
            alternatives=(
                Alternative(
                    cause="endless_python",
                    refuted_by="the owner's line does not change and the others never get a turn",
                ),
            ),
            next=(f"py-spy dump --native --pid {chain.end.node.pid}",),
        )
    return None


def _patience(case: Case, chain: Chain) -> float:
    """A sleep with a far deadline is certain; a computation may end."""
    return STRUCTURAL_SECONDS if outlasts(case, chain.end) or chain.end.still else temporal(case)


RULES = (Rule(CAUSE, judge),)
