"""Calls between two ranks as stacks name them: which of them may all stand and yet mean no hang."""

from collections.abc import Collection

from perfwatch.triage.case import Case
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.heartbeats import may_act
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.threads import other_threads
from perfwatch.triage.words.frames import collective_name, short_name, tags_of

NEW_GROUP = "new_group"
BEGUN = "a send or receive"  # of which only the handle is seen
RECEIVES = frozenset({"recv", "irecv"})
SENDS = frozenset({"send", "isend"})
POINT_TO_POINT = RECEIVES | SENDS | {"batch_isend_irecv", BEGUN}


def one_sided(names: Collection[str]) -> bool:
    """Whether nobody answers anybody: all receive, or all send. Of handles it is not told; where all wait, none answers."""
    calls = set(names)
    return calls <= RECEIVES or calls <= SENDS or calls == {BEGUN}


def may_go_on(names: Collection[str]) -> bool:
    """Whether some send and others receive, and nobody is in another call: stages of a pipeline differ by design."""
    return set(names) <= POINT_TO_POINT and not one_sided(names)


def makes_group(chain: Chain) -> bool:
    """Whether a rank that waits for others to appear makes a group with them, of a job that has met: a call like any other."""
    stack = chain.end.node.stack
    if chain.end.kind != "rendezvous" or stack is None:
        return False
    functions = {
        short_name(frame.function) for frame in stack.frames if "rendezvous" in tags_of(frame.function, frame.file)
    }
    return NEW_GROUP in functions and "init_process_group" not in functions


def called(chain: Chain) -> str:
    """The call that the end of a chain stands in."""
    if makes_group(chain):
        return NEW_GROUP
    stack = chain.end.node.stack
    return (collective_name(stack) if stack is not None else None) or chain.awaited


def may_join_beside(case: Case, node: Node) -> bool:
    """Whether another thread of a rank that stands in a call rests, and may send, receive or join the others when it wakes."""
    return any(may_act(case.history, other) for other in other_threads(case.history, case.job, node))


def at_odds(names: Collection[str]) -> str:
    """What ranks in these calls do, in words."""
    calls = set(names)
    if calls == {BEGUN}:
        return "every rank waits for a send or receive that it has begun, and none answers another's"
    if calls <= RECEIVES:
        return "every rank waits to receive and none sends"
    if calls <= SENDS:
        return "every rank sends and none receives"
    return f"the ranks wait for each other in different {'calls' if calls & POINT_TO_POINT else 'collectives'}"
