"""A question that a program puts on its stdin, which is a pipe: mostly nobody sits there, and no answer will come."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.memory import quiet
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.sending import STDIN
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import user_frame
from perfwatch_probes.readings import Stack

QUESTIONS = frozenset({"input", "getpass", "getpass.getpass", "click.confirm", "click.prompt"})


def asks_once(case: Case, chain: Chain) -> bool:
    """Whether a program that has trained already puts a question: one read of stdin at a line of its own, in no loop over it.

    Nor one that was answered before: whoever drives a program over its stdin sends the next order when it likes.
    """
    node, pipe = chain.end.node, chain.end.descriptor
    line = calling_line(case.history, node.stack) if node.stack is not None else None
    if line is None or line.loops or pipe is None or pipe.fd != STDIN or node.pid != chain.start.pid:
        return False
    reads = any(call.endswith("stdin.readline") for call in line.calls) or bool(QUESTIONS.intersection(line.calls))
    if not reads or _went_on(case, node):
        return False
    rank = case.job.members[chain.start.pid]
    return bool(quiet(case, rank).evidence) or case.profile(rank).seen(*TRAINING_TAGS)


def _went_on(case: Case, node: Node) -> bool:
    """Whether a thread was seen at the line that it is at, and then elsewhere, before it came back there."""
    stacks = (one.reading for one in case.history.series(Stack, node.pid, node.tid) if one.reading.frames)
    there = [user_frame(stack) == node.frame for stack in stacks]
    return True in there and False in there[there.index(True) :]
