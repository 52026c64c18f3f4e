"""A training thread, or one that it waits for, sleeps until a moment that the kernel knows: a window, a round of others, a cool-down."""

from perfwatch.triage.case import Case
from perfwatch.triage.patience import wakes_soon
from perfwatch.triage.shares.thresholds import LASTS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.words.backing_off import next_try_seconds

LEAST_SECONDS = 10.0  # of the sleep that are over, or to come: shorter ones belong to a step


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
