"""Waits for other ranks without a frame of torch's own: below a backward pass, and for the handle of a call that was only begun.

gloo waits for a collective for as long as it takes, and for a send or receive until its timeout, which is half an hour.
"""

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits.heartbeats import has_timeout, waits_forever
from perfwatch.triage.waits.node import ENDLESS_SECONDS, Node
from perfwatch.triage.waits.polling import waits_for_work

REDUCTION, WORK, EXCHANGE = "backward", "work", "exchange"


def of_peers(history: History, job: Job, node: Node) -> tuple[str, str] | None:
    """What of theirs a rank waits for, in words, and which of the three it is; None where it is none of them."""
    if max(len(job.ranks), job.world_size or 1) < 2 or node.motion.frozen is False:  # on this host or on others
        return None
    if waits_forever(node):
        if "backward" in node.inner:
            return "the gradients' reduction", REDUCTION
        return ("an asynchronous collective", WORK) if waits_for_work(history, node) else None
    long = has_timeout(node) and node.wait is not None and (node.wait.remaining_seconds or 0.0) > ENDLESS_SECONDS
    return ("a send or receive", EXCHANGE) if long and waits_for_work(history, node) else None
