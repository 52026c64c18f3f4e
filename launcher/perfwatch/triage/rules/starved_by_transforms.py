"""The training thread waits for data because the workers' own computing is too slow."""

from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.cpu import spare_cores
from perfwatch.triage.shares.job_servers import by_server, server
from perfwatch.triage.shares.locked_in_turn import at_lock, turns
from perfwatch.triage.shares.producing import work
from perfwatch.triage.shares.rollouts import in_environment
from perfwatch.triage.shares.starving import Starving, awaits_data, starving
from perfwatch.triage.shares.thrown_away import unfollowed
from perfwatch.triage.shares.unused_results import hands_on
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("starved_by_transforms", "slow", "data", (Thread, Stack))

UNEXPLAINED = 0.65  # confidence where the workers neither compute nor read
SPARE_CORES = 0.25  # with less than that idle, more workers would take their time from those that are there
DOUBTED = 0.7  # batches come, and no step of them was seen; or no step uses what comes: it is no data


def judge(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers burn CPU, or wait for neither files nor sockets."""
    found = starving(case)
    if found is None:
        return None
    does = work(case, found)
    served = server(case, found) if does.mostly in ("sockets", "waiting") else None
    if served is not None and served.computes:
        return by_server(case, CAUSE, found, served)
    if does.mostly not in ("computing", "waiting"):
        return None
    computes = does.mostly == "computing"
    if _makes_experience(case, found) or (at_lock if computes else turns)(case, found) is not None:
        return None
    uneven = computes and 0 < does.computing < found.workers
    unused = hands_on(case, found)
    doubted = unused or unfollowed(case, found.rank)
    return found.finding(
        case,
        CAUSE,
        ceiling=UNEXPLAINED if not computes else DOUBTED if doubted else 0.95,
        summary=found.summary(
            case, "computing" if computes else "waiting in the program's own code", does.computing if uneven else None
        ),
        evidence=(
            case.saw(
                "thread",
                found.kind,
                "compute" if computes else "neither compute nor read",
                f"{does.wants:.0%} of a core each",
                "idle between batches",
            ),
        ),
        alternatives=(
            Alternative(
                cause="starved_by_network" if does.sockets > does.files else "starved_by_storage",
                refuted_by=f"the workers read in {max(does.files, does.sockets):.0%} of looks and run {does.runs:.0%} of the time",
            ),
        ),
        next=(_next(case, found, computes, uneven, unused),),
    )


def _next(case: Case, found: Starving, computes: bool, uneven: bool, unused: bool) -> str:
    if not computes:
        line = found.line(case)
        return f"look at what they wait for{f' at {line}' if line else ''}: no more workers make that shorter"
    if uneven:
        return "give each worker as much to do as the others: one that has most of the work holds up the batches of all"
    if unused:
        return "make that cheaper, hand on less of it, or let more of it wait: no step uses what is waited for"
    spare = spare_cores(case, found.rank.pid)
    if spare is not None and spare < SPARE_CORES:
        return "make the transform cheaper, or do it ahead of training: no CPU is left for more workers"
    return "raise num_workers or make the transform cheaper"


def _makes_experience(case: Case, found: Starving) -> bool:
    """Whether most of the waiting is for environments, which reinforcement learning steps in processes of their own.

    They work by turns: one that waits for its next action is as it should be.
    """
    steps = in_environment(case.history, found.profile)
    waits = found.profile.share_where(awaits_data)
    return found.profile.share_where(lambda stack: awaits_data(stack) and steps(stack)) > waits / 2


RULES = (Rule(CAUSE, judge),)
