"""The job stood in a collective, and no recorder's dump tells of it: what NCCL's RAS service counted, and where the ranks' stacks were.

Counts of a healthy job are a few launches apart, and a stack is of one moment. So one answer, or stacks alone, make a verdict that is to be
checked; two answers with the same counts make a sure one, and counts that grew make none.
"""

from perfwatch.postmortem.stalled import CAUSE, culprit, frame_of, listed, pid_of
from perfwatch.triage.case import Case
from perfwatch.triage.questions import tags
from perfwatch.triage.rule import Rule
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes import readings as r

UNCHANGED, LOST, ONE_ANSWER, STACKS = 0.9, 0.85, 0.65, 0.65
UNHEARD = ("dead", "unresponsive", "missing")
WAITS = frozenset(
    {"collective", "device_sync", "device_copy", "backward"}
)  # what a rank does that waits for others, or for its card
MOST_NAMED = 8


def by_counts(case: Case) -> Outcome:
    """Fires where RAS counted fewer calls in some ranks of a group, or did not reach some."""
    answers = [
        [seen.reading for seen in case.history.series(r.Communicator, *key)]
        for key in case.history.entities(r.Communicator)
    ]
    if not answers or case.history.entities(r.RecordedGroup) or any(_grew(series) for series in answers):
        return None
    world = max(series[-1].size for series in answers)
    for series in sorted(answers, key=lambda series: -series[-1].size):
        found = _unlike(case, series, world)
        if found is not None:
            return found
    return None


def _grew(series: list[r.Communicator]) -> bool:
    return len(series) > 1 and _counts(series[0]) != _counts(series[-1])


def _counts(answer: r.Communicator) -> dict[int, int]:
    return {member.rank: sum(member.launched.values()) for member in answer.members if member.launched}


def _unlike(case: Case, series: list[r.Communicator], world: int) -> Finding | None:
    """What one group shows; None where its ranks are level."""
    answer = series[-1]
    counts = _counts(answer)
    lost = [member for member in answer.members if member.state in UNHEARD]
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    behind = [member for member in answer.members if counts.get(member.rank) == least] if least < most else []
    late = lost or behind
    if not late:
        return None
    whole = answer.size == world  # elsewhere a number counts within the group
    names = listed(member.rank for member in late) + ("" if whole else f" of group {answer.communicator}")
    reached = ", ".join(f"rank {rank}: {count}" for rank, count in list(counts.items())[:MOST_NAMED])
    twice = len(series) > 1
    what = "was not reached by RAS" if lost else f"called {least} collectives, {most - least} fewer than the others"
    claim = (
        "did not answer"
        if lost
        else "counts that did not grow between two answers"
        if twice
        else "counts of one answer"
    )
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"{names} {what}; the others of that group wait",
        confidence=LOST if lost else UNCHANGED if twice else ONE_ANSWER,
        owner="unknown" if lost else CAUSE.owner,
        culprits=tuple(
            Culprit(
                pid=member.pid or (pid_of(case, member.rank) if whole else 0),
                rank=member.rank if whole else None,
                host=member.host or None,
                frame=frame_of(case, member.rank) if whole else None,
            )
            for member in late[:MOST_NAMED]
        ),
        evidence=(
            case.saw("nccl_ras", f"group {answer.communicator}", claim, reached or names, "equal counts that grow"),
        ),
        alternatives=(
            Alternative(
                cause="straggling_rank",
                refuted_by="the counts of two answers are equal" if twice else "a second answer would tell",
            ),
        ),
        next=(f"give the stack or the log of {names} to autopsy as well",),
    )


def by_stacks(case: Case) -> Outcome:
    """Fires where the stacks of most ranks wait for others and those of the rest are in something else."""
    if case.history.entities(r.RecordedGroup) or case.history.entities(r.Communicator):
        return None
    main = {rank.rank: one for rank in case.job.ranks if rank.rank is not None and (one := _main_stack(case, rank.pid))}
    waiting = [rank for rank, stack in main.items() if WAITS & tags(stack)]
    absent = [rank for rank in main if rank not in waiting]
    if not waiting or not absent or len(absent) > len(waiting):
        return None
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"{listed(absent)} {'was' if len(absent) == 1 else 'were'} elsewhere while {listed(waiting)} waited for other ranks",
        confidence=STACKS,
        owner=CAUSE.owner,
        culprits=tuple(culprit(case, rank) for rank in absent[:MOST_NAMED]),
        evidence=tuple(_at(case, rank, rank in absent) for rank in (*absent[:MOST_NAMED], *waiting[:2])),
        alternatives=(Alternative(cause="straggling_rank", refuted_by="not excluded: a stack is of one moment"),),
        next=("give the flight-recorder dumps of all ranks to autopsy as well",),
    )


def _main_stack(case: Case, pid: int) -> r.Stack | None:
    seen = case.history.latest(r.Stack, pid, pid)
    return seen.reading if seen is not None and seen.reading.frames else None


def _at(case: Case, rank: int, absent: bool) -> Evidence:
    claim = "is in no call that waits for other ranks" if absent else "waits for other ranks or for its card"
    return case.saw("stack", f"rank {rank}", claim, frame_of(case, rank) or "unknown")


RULES = (Rule(CAUSE, by_counts), Rule(CAUSE, by_stacks))
