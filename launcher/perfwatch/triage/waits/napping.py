"""A thread that sleeps a little and asks, at one and the same line, again and again: what it waits for does not come."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.moving.memory import GUESSED, has_come_back, lull
from perfwatch.triage.moving.motion import BURSTS, bursts, moves
from perfwatch.triage.patience import temporal
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.words.backing_off import retries
from perfwatch.triage.words.frames import any_tag, show
from perfwatch.verdict import Alternative, Outcome

NAPPING_SECONDS = 15.0  # at one line, before it is even suspected
OTHER_WORK = ("compile", "import", "save", "load", "rendezvous", "exit", "debugger")


def naps(case: Case, cause: Cause, chain: Chain) -> Outcome:
    """It sleeps a little at one and the same line, again and again, and does nothing in between."""
    node = chain.end.node
    rank = case.job.members[chain.start.pid]
    lasts = lull(case, rank, chain.end.silent_seconds or 0.0, temporal(case))
    silent = lasts.seconds
    if silent < min(NAPPING_SECONDS, temporal(case) / 2) or len(case.ranks) > 1:
        return None  # of several ranks the others tell whether this one is missed
    if bursts(case.history, node.pid, node.tid) >= BURSTS or has_come_back(case, rank, silent):
        return None  # it is let go on now and then, too briefly for a sample to see what it does
    if moves(case.history, node.pid, node.tid).recurrent or any_tag(node.tags, *TRAINING_TAGS, *OTHER_WORK):
        return None
    if not only_asks(case.history, node) or (node.stack is not None and retries(case, node.stack)):
        return None
    return hung(
        case,
        cause.name,
        chain,
        owner=cause.owner,
        summary=f"{who(chain)} sleeps and asks again and again; what it waits for does not come",
        patience=temporal(case),
        silent=silent,
        evidence=lasts.evidence,
        ceiling=GUESSED,
        alternatives=(
            Alternative(cause="waiting_for_file", refuted_by="no call that looks at a file is in that loop"),
        ),
        next=(f"look at {show(chain.end.node.frame)}: what would end that loop?",),
    )
