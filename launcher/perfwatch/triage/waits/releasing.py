"""Waits that no known thread ends: deadlocked locks, circles of connections, and silent native code."""

from collections.abc import Iterable

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.libraries import ANSWER, ITS_NEXT_CALL
from perfwatch.triage.waits.locks import A_LOCK, A_TASK, MAY, awaited, holds, takes_again
from perfwatch.triage.waits.native_waits import called_from, in_kernel
from perfwatch.triage.waits.node import EVENT_LOOP, End, Node, culprit, has_timeout, node_of
from perfwatch.triage.waits.other_end import answering
from perfwatch.triage.waits.threads import OUTSIDE_HELD, nearest, other_threads
from perfwatch.triage.waits.workers import idle
from perfwatch.triage.words.code import line_of, lock_taken
from perfwatch.triage.words.frames import any_tag, is_user, show
from perfwatch.verdict import Alternative, Evidence, Outcome
from perfwatch_probes.readings import Descriptor, Frame

ELSEWHERE = frozenset({"loader", "pool", "gil"})  # chains that have a rule of their own
ASKED = frozenset({"child", "join_process", "supervised"})  # so has any other end in a child: ``blocked_child``
CONNECTION = "connection"  # an edge over a network's socket; those over pipes and sockets of one host bear other names
CONNECTED = frozenset("read write recv send poll accept connect".split())  # calls on a pipe or a connection
HELD_UP = (A_LOCK, "a semaphore", "room in a queue")  # who waits for an item or an event may have nothing to do
CAUSE = "deadlocked_locks"
CEILING = 0.78  # who would answer is not known
CEILING_ELSEWHERE = ONE_SOURCE  # and may well be at work, on another machine
ALIVE_SECONDS = 30.0  # since a byte came: gRPC's signs of life come every ten
# Times the patience, and confidence: who is asked is at work, perhaps for others; or it is a device.
PATIENT, GUESSED = 5.0, 0.7
UNREAD = 0.78  # confidence without the stack of one of them: it may be about to send for another thread
TIMEOUT = "give the request a timeout"
BY_CHILD = Alternative(cause="blocked_child", refuted_by="it is talked to over the network")


def blocked_beside(case: Case, chain: Chain) -> list[Node]:
    """Of threads that wait for ever beside others that move, those that stopped in the midst of their work: no idle ones."""
    end = chain.end
    if end.kind != "lock" or (end.node.wait is not None and end.node.wait.shared):
        return []
    nodes = [node_of(case.history, case.job, end.node.pid, tid) for tid in end.others]
    return [n for n in nearest(case.history, end.node, nodes) if not idle(n) and awaited(n) in HELD_UP]


def partners(case: Case, chain: Chain) -> list[Node]:
    """The threads that wait together with the end: those on the cycle, or those of its process that wait for ever too."""
    end, start = chain.end, (chain.start.pid, chain.start.tid)
    if end.kind != "cycle":
        shared = end.node.wait is not None and end.node.wait.shared
        nodes = [node_of(case.history, case.job, end.node.pid, tid) for tid in end.others if not shared]
        return [node for node in nodes if not idle(node)]
    keys = dict.fromkeys((link.pid, link.tid) for link in chain.links if link.tid is not None)
    others = [key for key in keys if key != (end.node.pid, end.node.tid)]
    beside = [key for key in others if key != start] or others
    return [node_of(case.history, case.job, pid, tid) for pid, tid in beside]


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


def silent_in_native_code(case: Case, chain: Chain) -> Outcome:
    """A thread waits in native code while nothing of its process works; None while a thread reads through a mapping.

    A queue of C++ that is not filled, a peer that an RPC library has lost and a lock of a library look like a long request of which no byte
    has come yet. So it is given the full hang timeout, and is never certain. What asks other machines for what they make (``ray.get``) may
    wait for hours, and nothing here is seen to work: that stays a suspicion.
    """
    node = chain.end.node
    if in_kernel(case.history, node.pid):
        return None
    elsewhere = may_be_elsewhere(case, chain.end)
    what = f"for {ANSWER}" if chain.end.detail == ANSWER else f"in {called_from(chain.end)}, for what cannot be seen"
    return hung(
        case,
        CAUSE,
        chain,
        owner="unknown",
        summary=f"{who(chain)} waits {what}; nothing that might bring it works: "
        "no other thread of its process, and no process that it started"
        + ("; who answers may be on another machine" if elsewhere else ""),
        patience=temporal(case),
        ceiling=CEILING_ELSEWHERE if elsewhere else CEILING,
        alternatives=(Alternative(cause="downloading", refuted_by="no byte passes on its connections"),),
        next=(f"py-spy dump --native --pid {node.pid}",),
    )


def may_be_elsewhere(case: Case, end: End) -> bool:
    """True if a wait is for what others of a cluster make, and another machine keeps in touch; or for a call of unknown origin."""
    keys = case.history.of(Descriptor, end.node.pid) if "remote_get" in end.node.inner else ()
    files = [seen for key in keys if (seen := case.history.latest(Descriptor, *key)) is not None]
    known = [(one.reading.socket, case.at - one.at) for one in files if one.reading.socket is not None]
    remote = [(one, age) for one, age in known if one.local.rpartition(":")[0] != one.peer.rpartition(":")[0]]
    ages = [one.received_ago_seconds + age for one, age in remote if one.received_ago_seconds is not None]
    return end.detail == ITS_NEXT_CALL or min(ages, default=ALIVE_SECONDS + 1) <= ALIVE_SECONDS


def served_by_the_job(case: Case, cause: str, chain: Chain) -> Outcome:
    """The peer is a process of the job itself, which stands still."""
    if chain.end.kind == "cycle":
        return _in_a_circle(case, cause, chain)
    patience = STRUCTURAL_SECONDS if outlasts(case, chain.end) else temporal(case)
    return hung(
        case,
        cause,
        chain,
        owner="user_code",
        summary=f"pid {chain.start.pid} at {show(chain.start.frame)} waits for {chain.links[0].waits_for}; "
        f"there {who(chain)} waits for {chain.awaited}",
        patience=patience,
        alternatives=(BY_CHILD,),
        next=(f"py-spy dump --nonblocking --pid {chain.end.node.pid}", TIMEOUT),
    )


def at_the_peer(case: Case, end: End) -> Node | None:
    """Who should answer, where the peer is one process of the job, and one thread of it is known to be at a line of the program.

    One that waits for visitors owes nothing, for all that is known.
    """
    inside = tuple(pid for pid in end.others if pid != end.node.pid and pid in case.job.members)
    found = [one for one in answering(case.history, case.job, inside) if one.frame is not None]
    found = [one for one in found if one.wait is None or one.wait.kind != "accept"]
    return found[0] if len(found) == 1 else None


def _in_a_circle(case: Case, cause: str, chain: Chain) -> Outcome:
    """The peer waits for bytes, too, and in the end for those of this process."""
    others = partners(case, chain)
    ask_them = ", ".join(named(one, chain.end.node.pid) for one in others)
    found = hung(
        case,
        cause,
        chain,
        owner="user_code",
        summary=f"{who(chain)} waits for {turn_of(chain)}, and so in turn does {ask_them}: none of them sends",
        patience=STRUCTURAL_SECONDS,
        evidence=tuple(
            case.saw("thread", f"pid {one.pid}", f"waits, too, at {show(one.frame)}", "for bytes", "one of them sends")
            for one in others[:4]
        ),
        ceiling=1.0 if all(one.stack is not None for one in (chain.end.node, *others)) else UNREAD,
        alternatives=(BY_CHILD,),
        next=(f"py-spy dump --nonblocking --locals --pid {chain.end.node.pid}", TIMEOUT),
    )
    return msgspec.structs.replace(found, culprits=tuple(map(culprit, (chain.end.node, *others))))
