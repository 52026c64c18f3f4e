"""A thread that sleeps: once until a moment that the kernel knows, or a little again and again at one line."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.moving.memory import GUESSED, has_come_back, lull
from perfwatch.triage.moving.motion import BURSTS, bursts, moves
from perfwatch.triage.patience import temporal, wakes_soon
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.going_through import LASTS
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.words.backing_off import next_try_seconds, retries
from perfwatch.triage.words.frames import any_tag, show
from perfwatch.verdict import Alternative, Outcome

LEAST_SECONDS = 10.0  # of the sleep that are over, or to come: shorter ones belong to a step
NAPPING_SECONDS = 15.0  # at one line, before it is even suspected
OTHER_WORK = ("compile", "import", "save", "load", "rendezvous", "exit", "debugger")


def asleep_for(case: Case, chain: Chain) -> float | None:
    """Seconds until the end of a chain wakes from one long sleep, soon enough to be meant; None where it does not sleep, naps, or asks."""
    end, node = chain.end, chain.end.node
    if end.kind not in ("sleep", "pipe_empty") or not end.still or not wakes_soon(case, end):
        return None
    left = (node.wait.remaining_seconds or 0.0) - (case.at - node.thread_at) if node.wait is not None else 0.0
    rested, waited = end.silent_seconds or 0.0, chain.start.motion.ran_ago_seconds or 0.0
    long = max(left, rested) >= case.patience_seconds or waited >= LASTS * case.patience_seconds
    if left <= 0.0 or left + rested < LEAST_SECONDS or not (long or node == chain.start):
        return None  # a worker's naps may be what is slow
    asks = next_try_seconds(case, node) is not None or only_asks(case.history, node)
    return None if asks or (node.stack is None and not _is_a_program_of_its_own(case, chain)) else left


def _is_a_program_of_its_own(case: Case, chain: Chain) -> bool:
    """Whether the training thread waits for just this process, which runs no Python: of a script that it were a part of it may be a nap."""
    member = case.job.members.get(chain.end.node.pid)
    return member is not None and not member.process.python and case.job.branch(member.pid, chain.start.pid) == member


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
