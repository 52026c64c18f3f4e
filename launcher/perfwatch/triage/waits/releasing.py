"""Who may still release a lock: threads that work, and threads that rest for a while and come back; and what each waits for."""

from collections.abc import Iterable

from perfwatch.triage.case import Case
from perfwatch.triage.waits.asked_for import A_LOCK, A_TASK, MAY, awaited
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.heartbeats import has_timeout
from perfwatch.triage.waits.lock_owners import holds, takes_again
from perfwatch.triage.waits.node import EVENT_LOOP, End, Node, node_of
from perfwatch.triage.waits.threads import OUTSIDE_HELD, nearest, other_threads
from perfwatch.triage.waits.workers import idle
from perfwatch.triage.words.code import line_of, lock_taken
from perfwatch.triage.words.frames import any_tag, is_user, show
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Frame

ELSEWHERE = frozenset({"loader", "pool", "gil"})  # chains that have a rule of their own
ASKED = frozenset({"child", "join_process", "supervised"})  # so has any other end in a child: ``blocked_child``
CONNECTION = "connection"  # an edge over a network's socket; those over pipes and sockets of one host bear other names
CONNECTED = frozenset("read write recv send poll accept connect".split())  # calls on a pipe or a connection
HELD_UP = (A_LOCK, "a semaphore", "room in a queue")  # who waits for an item or an event may have nothing to do


def blocked_beside(case: Case, chain: Chain) -> list[Node]:
    """Of threads that wait for ever beside others that move, those that stopped in the midst of their work: no idle ones."""
    end = chain.end
    if end.kind != "lock" or (end.node.wait is not None and end.node.wait.shared):
        return []
    nodes = [node_of(case.history, case.job, end.node.pid, tid) for tid in end.others]
    return [n for n in nearest(case.history, end.node, nodes) if not idle(n) and awaited(n) in HELD_UP]


def partners(case: Case, chain: Chain) -> list[Node]:
    """Who waits together with the end: the threads on the cycle, or those of its process that wait for ever too."""
    end = chain.end
    if end.kind != "cycle":
        shared = end.node.wait is not None and end.node.wait.shared
        nodes = [node_of(case.history, case.job, end.node.pid, tid) for tid in end.others if not shared]
        return [node for node in nodes if not idle(node)]
    on = dict.fromkeys((link.pid, link.tid) for link in chain.links if link.tid is not None)
    start, last = (chain.start.pid, chain.start.tid), (end.node.pid, end.node.tid)
    keys = [key for key in on if key not in (last, start)]
    if start in on and start != last and not keys:
        keys = [start]
    return [node_of(case.history, case.job, pid, tid) for pid, tid in keys]


def held_up(end: Node, beside: list[Node]) -> list[Node]:
    """Of those that wait beside a thread, who keeps it waiting: it waits for what they would bring, they wait for a lock."""
    return [] if awaited(end) in HELD_UP else [one for one in beside if awaited(one) in HELD_UP]


def named(node: Node, pid: int) -> str:
    """A thread with its line, as seen from process ``pid``: ``thread reader at read (data.py:7)``."""
    where = "" if node.pid == pid else f" of pid {node.pid}"
    thread = f"thread {node.name or node.tid}" if node.tid != node.pid else "the main thread"
    return f"{thread}{where}" + (f" at {show(node.frame)}" if node.frame is not None else "")


def idle_loops(case: Case, chain: Chain) -> list[Node]:
    """Threads of the program's own in an event loop that has nothing due: no timer and no task that could run; only news from outside.

    asyncio asks its selector without a timeout then (CPython, asyncio/base_events.py, ``_run_once``). Loops that a library keeps
    for itself (fsspec's, a tracker's) mostly rest so.
    """
    others = other_threads(case.history, case.job, chain.end.node)
    waiting = [n for n in others if n.wait is not None and n.wait.kind == "poll" and n.wait.forever and n.motion.frozen]
    return [n for n in waiting if EVENT_LOOP in n.inner and n.stack is not None and any(map(is_user, n.stack.frames))]


def blocking_loops(nodes: Iterable[Node]) -> list[Node]:
    """Those that wait for a future where they should await it: the event loop below them turns no more, and brings nobody on."""
    return [node for node in nodes if "futures_wait" in node.inner and EVENT_LOOP in node.tags]


def has_a_rule_of_its_own(chain: Chain) -> bool:
    """Whether a wait for a lock lies at the end of a way that another rule tells."""
    if chain.end.kind == "lock":
        return bool(chain.through & ELSEWHERE)
    if chain.through == {CONNECTION}:
        return True  # each waits for bytes from the next one: ``blocked_network``
    inside = {link.pid for link in chain.links} == {chain.start.pid}
    return bool(chain.through & ASKED) or (bool(chain.through & ELSEWHERE) and not inside)


def turn_of(chain: Chain) -> str:
    """What a thread on a cycle waits for; of a pipe or a connection the chain says which."""
    node = chain.end.node
    if any_tag(node.inner, "pool_wait", "futures_wait"):
        return "its own pool"
    if "remote_get" in node.inner:
        return "what an actor is to return"
    told = [link.waits_for for link in chain.links if (link.pid, link.tid) == (node.pid, node.tid)]
    return told[-1] if told and node.wait is not None and node.wait.kind in CONNECTED else "its turn"


def taken_by_itself(case: Case, chain: Chain) -> Frame | None:
    """Where the end of a chain took the lock that it waits for, as its lines tell; None where another thread may have one of that name.

    Whoever waits beside it for the same lock is a victim.
    """
    node = chain.end.node
    frame = takes_again(case.history, node) if chain.end.kind == "lock" and not chain.end.detail else None
    lock = lock_taken(line_of(case.history, node.frame))
    others = other_threads(case.history, case.job, node) if frame is not None else []
    return None if any(holds(case.history, one, lock) for one in others) else frame


def why_nobody_comes(
    end: End, lock: str, beside: list[Node], loops: list[Node], *, elsewhere: bool, moving: bool
) -> str:
    """Of a wait for a lock, in words: who waits with it, and why none of them lets it go on.

    Args:
        end: of the chain.
        lock: what is waited for, in words.
        beside: threads that wait as well.
        loops: those of them that are in an event loop in which nothing is due.
        elsewhere: another process may hold it.
        moving: other threads of the process move.
    """
    if elsewhere:
        pids = ", ".join(map(str, end.others[:3]))
        return f"; pid {pids} {MAY.get(lock, 'may hold')} it" + ("" if moving else " and waits for ever as well")
    if end.detail == OUTSIDE_HELD:
        return f"; no process of the job shares it, and one outside {MAY.get(lock, 'may hold')} it"
    if not moving:
        with_whom = " and ".join(partner_named(p, end, lock) for p in beside[:3])
        too = "so do" if len(beside) > 1 else "so does"
        return f"; {too} {with_whom}" if with_whom else "; no thread is left that would release it"
    waiting = " and ".join(f"{named(p, end.node.pid)} waits for {awaited(p)}" for p in beside[:3])
    loop = " and ".join(named(p, end.node.pid) for p in loops[:3])
    return (
        (f"; {waiting} as well, and no other thread" if beside else "; no thread")
        + (" was seen to wake it" if lock == A_TASK else " was seen to release it")
        + (f"; {loop} is in an event loop in which nothing is due" if loop else "")
    )


def waits_too(case: Case, node: Node) -> Evidence:
    """A thread that waits beside the one at the end of the chain."""
    call = f"{node.wait.call if node.wait else '?'} without a timeout"
    entity = f"pid {node.pid} thread {node.tid}"
    return case.saw("thread", entity, f"waits too, at {show(node.frame)}", call, "one of them runs")


def for_how_long(node: Node) -> str:
    """How long a thread would wait, to follow on what it waits for; nothing where its library looks up again and again."""
    if "remote_get" in node.inner:
        return ""
    return " with a timeout" if has_timeout(node) else " for ever"


def partner_named(node: Node, end: End, lock: str) -> str:
    """A partner, and what it waits for where that is not the same."""
    own = awaited(node)
    return named(node, end.node.pid) + (f" for {own}" if end.kind == "lock" and own != lock else "")
