"""A thread that asks again and again for what only others can change: a flag in memory that a process beside it writes.

Which memory that is, and who else has it, is not seen. Those who may write it are the processes that its own has started, and
the other ranks that are at something of their own.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.loops import only_tests
from perfwatch.triage.moving.working import work_beside
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import node_of
from perfwatch.triage.waits.polling import only_asks, source_of
from perfwatch.triage.words.backing_off import retries
from perfwatch.triage.words.code import names

TURNS = ("python", "native")
IDLE_CALLS = frozenset("sleep sched_yield is_set empty poll int len".split())


def asks(case: Case, chain: Chain) -> bool:
    """Whether the training thread does nothing else, be it that it sleeps a little in between or that it spins."""
    node = chain.end.node
    if (node.pid, node.tid) != (chain.start.pid, chain.start.tid) or node.stack is None:
        return False
    if chain.end.kind in TURNS:
        return only_tests(case.history, node)
    return chain.end.kind == "sleep" and node.naps and only_asks(case.history, node) and not retries(case, node.stack)


def only_waits(case: Case, pid: int) -> bool:
    """Whether all that a process does is to ask, too: two that spin, each for what the other would write, are a deadlock.

    A call in that loop may be work of its own, a solver's step, unless it is known to be none.
    """
    node = node_of(case.history, case.job, pid)
    source = source_of(case.history, node)
    if source is None or node.motion.io_calls or work_beside(case, node) is not None:
        return False
    tests = source.only_tests and names(source.loop_calls) <= IDLE_CALLS
    return tests or (node.naps and only_asks(case.history, node))
