"""Threads of one process that keep each other waiting: for a lock, for a callback of CUDA, or for the GIL.

CUDA runs host functions between the work of a stream, in a thread of its own. One that asks for a lock holds up the stream, and
a thread that waits for the stream with that lock in hand waits for ever: at a full core, on a card that has nothing to do.
"""

from collections.abc import Iterable

import msgspec

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import idle_card_seconds, regimes
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.ends.ended_processes import ended_beside
from perfwatch.triage.hang import hung, named, nearest, silent_seconds, stacks_of, who
from perfwatch.triage.independence import MAY_COME, ONE_SOURCE
from perfwatch.triage.moving.memory import Lull, lull
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules.pipes import ASKED, undrained
from perfwatch.triage.waits.chain import Chain, link
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.libraries import ANSWER, ITS_NEXT_CALL, REMOTE, may_ask
from perfwatch.triage.waits.locks import A_LOCK, A_TASK, MAY, awaited, holds, takes_again
from perfwatch.triage.waits.native_waits import called_from, in_kernel
from perfwatch.triage.waits.node import (
    EVENT_LOOP,
    NATIVE_WAIT,
    End,
    Node,
    beside,
    culprit,
    has_timeout,
    node_of,
    waits_forever,
)
from perfwatch.triage.waits.threads import OTHERS_MOVE, OUTSIDE_HELD, gil_waiters, other_threads
from perfwatch.triage.waits.threads import nearest as fell_silent_with
from perfwatch.triage.waits.workers import idle
from perfwatch.triage.words.code import line_of, lock_taken
from perfwatch.triage.words.frames import any_tag, is_user, show
from perfwatch.verdict import Abstention, Evidence, Finding, Missing, Outcome
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Descriptor, Frame, Stack, Thread

DEADLOCKED_LOCKS = Cause("deadlocked_locks", "hung", "user_code", (Thread, Stack))
SILENT_TASKS = "a task that ended with an error is silent until it is awaited: asyncio.TaskGroup, or add_done_callback"
AWAIT = "in a coroutine await what it asks its own loop for: .result() there never returns"
# A process that waits for ever may hold it, or an actor may answer: who lets that one go on is not known.
SHARED_CEILING = 0.8

ELSEWHERE = frozenset({"loader", "pool", "gil"})  # chains that have a rule of their own
CONNECTED = frozenset("read write recv send poll accept connect".split())  # calls on a pipe or a connection
CONNECTION = "connection"  # an edge over a network's socket; those over pipes and sockets of one host bear other names
HELD_UP = (A_LOCK, "a semaphore", "room in a queue")  # who waits for an item or an event may have nothing to do
CEILING = 0.78  # who would answer is not known
CEILING_ELSEWHERE = ONE_SOURCE  # and may well be at work, on another machine
ALIVE_SECONDS = 30.0  # since a byte came: gRPC's signs of life come every ten

SEEN = 0.9  # that both mean one lock is told by the text of their lines
STAYS = 0.95  # of the samples: a nonblocking one tears in about 3 %
SPINS = 0.5  # of a core: a thread that waits for its card looks for it all the time

HELD_GIL = Cause("held_gil", "hung", "user_code", (Thread, Stack))
RUNS_IN_NATIVE_CODE = 0.78  # a native call that runs may end yet: only time speaks against it


# Locks


def deadlocked_locks(case: Case) -> Outcome:
    """Fires on a chain that ends in a lock or a cycle of waits."""
    found = nearest(_deadlock_of(case, chain) for chain in case.still_chains)
    return found if isinstance(found, Finding) else by_callback(case) or found


def _deadlock_of(case: Case, chain: Chain) -> Outcome:
    end = chain.end
    if end.kind not in ("lock", "cycle", NATIVE_WAIT) or not end.still or has_a_rule_of_its_own(chain):
        return None
    if undrained(case, chain) is not None:
        return None  # or it is a pipe without a reader: ``blocked_pipe`` names it
    if end.node.stack is None:
        lacking = case.lacks("stacks") or Missing(witness="stacks", reason=f"no stack of pid {end.node.pid} was read")
        return Abstention(cause=DEADLOCKED_LOCKS.name, missing=(lacking,))
    if len(case.ranks) > 1 and "collective" in end.node.tags | chain.start.tags:
        return None
    if end.kind == NATIVE_WAIT:
        return silent_in_native_code(case, chain)
    return _deadlock(case, chain)


def _deadlock(case: Case, chain: Chain) -> Finding:
    end = chain.end
    moving = end.detail == OTHERS_MOVE
    elsewhere = bool(end.node.wait and end.node.wait.shared and end.others)
    guessed = elsewhere or REMOTE in chain.through
    doubtful = moving or end.detail == OUTSIDE_HELD or may_ask(case.history, case.job, end.node)
    ceiling = MAY_COME if doubtful else SHARED_CEILING if guessed else 1.0
    own = taken_by_itself(case, chain)
    beside = [] if own is not None else blocked_beside(case, chain) if moving else partners(case, chain)
    loops = idle_loops(case, chain) if moving and not beside else []
    blocking = blocking_loops((end.node, *beside))
    ended = ended_beside(case, chain) if end.kind == "lock" else []
    lock = turn_of(chain) if end.kind == "cycle" else awaited(end.node)
    told = why_nobody_comes(end, lock, beside, loops, elsewhere=elsewhere, moving=moving)
    if own is not None:
        lock, told = f"a lock that it has taken itself at {show(own)}", ""
    told += "".join(f"; {named(p, end.node.pid)} blocks its own event loop" for p in blocking[:1])
    told += "".join(f"; {one.told}" for one in ended[:3])
    suspects = [node_of(case.history, case.job, pid) for pid in end.others] if elsewhere else [*beside, *loops]
    first_of_all = held_up(end.node, beside) if end.kind == "lock" and not elsewhere else []
    blamed = [culprit(p) for p in dict.fromkeys((*blocking, *first_of_all, end.node, *suspects))]
    lost = [one.culprit for one in ended[:3]]
    first = any(one.error is not None for one in ended) or len(lost) == len(blamed) == 1
    return hung(
        case,
        DEADLOCKED_LOCKS,
        chain,
        summary=f"{who(chain)} is blocked{for_how_long(end.node)} on {lock}{told}",
        patience=STRUCTURAL_SECONDS if ceiling == 1.0 else temporal(case),
        evidence=(*(waits_too(case, p) for p in beside[:4]), *(one.evidence(case) for one in ended[:3])),
        ceiling=ceiling,
        but={"endless_python": "the thread does not run"},
        next=(AWAIT if blocking else SILENT_TASKS if lock == A_TASK else stacks_of(end.node.pid),),
        culprits=(*lost, *blamed) if first else (*blamed, *lost),
    )


def blocked_beside(case: Case, chain: Chain) -> list[Node]:
    """Of threads that wait for ever beside others that move, those that stopped in the midst of their work: no idle ones."""
    end = chain.end
    if end.kind != "lock" or (end.node.wait is not None and end.node.wait.shared):
        return []
    nodes = [node_of(case.history, case.job, end.node.pid, tid) for tid in end.others]
    return [n for n in fell_silent_with(case.history, end.node, nodes) if not idle(n) and awaited(n) in HELD_UP]


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


def idle_loops(case: Case, chain: Chain) -> list[Node]:
    """Threads of the program's own in an event loop that has nothing due: no timer and no task that could run; only news from outside.

    asyncio asks its selector without a timeout then (CPython, asyncio/base_events.py, ``_run_once``). Loops that a library keeps
    for itself (fsspec's, a tracker's) mostly rest so.
    """
    others = other_threads(case.history, case.job, chain.end.node)
    waiting = [n for n in others if n.wait is not None and n.wait.kind == "poll" and n.wait.forever and n.motion.frozen]
    return [n for n in waiting if EVENT_LOOP in n.inner and n.stack is not None and any(map(is_user, n.stack.frames))]


def blocking_loops(nodes: Iterable[Node]) -> list[Node]:
    """Those that wait for a future where they should await it: the event loop below them turns no more, and nothing goes on."""
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

    A thread that waits beside it for the same lock is a victim.
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
        return f"; pid {pids} {MAY.get(lock, 'may hold')} it" + (
            "" if moving else " and is blocked with no timeout itself"
        )
    if end.detail == OUTSIDE_HELD:
        return f"; no process of the job shares it, and a process outside the job {MAY.get(lock, 'may hold')} it"
    if not moving:
        with_whom = " and ".join(partner_named(p, end, lock) for p in beside[:3])
        too = "so are" if len(beside) > 1 else "so is"
        return f"; {too} {with_whom}" if with_whom else "; no running thread can release it"
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
    return " with a timeout" if has_timeout(node) else " with no timeout"


def partner_named(node: Node, end: End, lock: str) -> str:
    """A partner, and what it waits for where that is not the same."""
    own = awaited(node)
    return named(node, end.node.pid) + (f" on {own}" if end.kind == "lock" and own != lock else "")


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
        DEADLOCKED_LOCKS,
        chain,
        owner="unknown",
        summary=f"{who(chain)} waits {what}; nothing that might produce it works: "
        "no other thread of its process, and no process that it started"
        + ("; the process that answers may be on another machine" if elsewhere else ""),
        patience=temporal(case),
        ceiling=CEILING_ELSEWHERE if elsewhere else CEILING,
        but={"downloading": "no byte passes on its connections"},
        next=(stacks_of(node.pid, "--native"),),
    )


def may_be_elsewhere(case: Case, end: End) -> bool:
    """True if a wait is for what others of a cluster make, and another machine keeps in touch; or for a call of unknown origin."""
    keys = case.history.of(Descriptor, end.node.pid) if "remote_get" in end.node.inner else ()
    files = [seen for key in keys if (seen := case.history.latest(Descriptor, *key)) is not None]
    known = [(one.reading.socket, case.at - one.at) for one in files if one.reading.socket is not None]
    remote = [(one, age) for one, age in known if one.local.rpartition(":")[0] != one.peer.rpartition(":")[0]]
    ages = [one.received_ago_seconds + age for one, age in remote if one.received_ago_seconds is not None]
    return end.detail == ITS_NEXT_CALL or min(ages, default=ALIVE_SECONDS + 1) <= ALIVE_SECONDS


# A callback of CUDA


def stands_in_sync(case: Case, chain: Chain) -> bool:
    """True if a training thread spins at one line, at a call that waits for its card."""
    node, end = chain.start, chain.end.node
    spins = (end.pid, end.tid) == (node.pid, node.tid) and (node.motion.run_share or 0.0) >= SPINS
    stays = node.motion.samples >= 2 and node.motion.steady_share >= STAYS
    return spins and stays and in_sync(case.history, node.stack)


def _held_callback(case: Case, chain: Chain) -> tuple[Node, str] | None:
    """Of a rank that spins at a call which waits for its card: the callback that waits for a lock of that rank, and the lock."""
    node, history = chain.start, case.history
    source = line_of(history, node.frame) if stands_in_sync(case, chain) else None
    for other in beside(history, case.job, node) if source is not None else ():
        theirs = line_of(history, other.frame)
        if theirs is None or not waits_forever(other) or not other.motion.frozen or not _called_back(other.stack):
            continue
        asks = theirs.text.lstrip().startswith(("with ", "async with "))
        within = source.within if source is not None else ()
        shared = [lock for lock in theirs.within if asks and lock in within and lock in theirs.text]
        if shared and _one_object(node.frame, other.frame, shared[0]):
            return other, shared[0]
    return None


def _called_back(stack: r.Stack | None) -> bool:
    """Whether native code called into Python: a thread that Python has started begins in the library, and has a name."""
    return stack is not None and bool(stack.frames) and not stack.thread and is_user(stack.frames[-1])


def _one_object(mine: r.Frame | None, theirs: r.Frame | None, lock: str) -> bool:
    """True if one name in two functions means one lock, as far as the text tells: in one file, and of ``self`` in one class."""
    if mine is None or theirs is None or mine.file != theirs.file:
        return False
    classes = {frame.function.rpartition(".")[0] for frame in (mine, theirs)}
    return not lock.startswith("self.") or len(classes) == 1


def by_callback(case: Case) -> Outcome:
    """Fires where a training thread and a callback of its card's stream wait for each other, and that card has nothing to do."""
    for chain in case.chains.values():
        found = _held_callback(case, chain)
        idle = idle_card_seconds(case.history, chain.start.pid) if found is not None else None
        if found is not None and idle is not None:
            return _callback(case, chain, *found, idle)
    return None


def _callback(case: Case, chain: Chain, other: Node, lock: str, idle: float) -> Finding:
    """Both threads, of which the one holds the lock, and the other one holds up the card for which the first one waits."""
    node, line = chain.start, show(other.frame)
    regime = regimes(case.history, node.pid)[0]
    card, ran_ago = name_of(case.history, regime.uuid), other.motion.ran_ago_seconds or 0.0
    waits = f"{card}, which has nothing to do: its stream waits for thread {other.tid}"
    links = tuple(
        msgspec.structs.replace(one, waits_for=waits) if (one.pid, one.tid) == (node.pid, node.tid) else one
        for one in chain.links
    )
    last = link(case.history, other, f"{lock}, which {who(chain)} holds", len(links))
    return hung(
        case,
        DEADLOCKED_LOCKS,
        chain,
        summary=f"{who(chain)} waits for {card}, which has nothing to do, and holds {lock}; thread {other.tid} at {line}, "
        "which native code has called back, is blocked on that lock with no timeout: the card's stream continues when it returns",
        patience=STRUCTURAL_SECONDS,
        silent=min(idle, ran_ago),
        ceiling=SEEN,
        evidence=(
            case.saw(
                "thread",
                f"pid {other.pid} thread {other.tid}",
                f"a callback asks for {lock} at {line}",
                f"{other.wait.call if other.wait else '?'} without a timeout, last ran {duration(ran_ago)} ago",
                "callbacks return at once",
                other.thread_at,
            ),
            case.saw(
                regime.source,
                card,
                "has nothing to do while the thread waits for it",
                f"no kernel for {duration(idle)}",
                "a card that is waited for is at work",
            ),
            case.saw(
                "source",
                show(node.frame) or f"pid {node.pid}",
                f"stands within {lock}",
                f"{node.motion.run_share or 0.0:.0%} of a core at one line",
                "the lock is free while the card is waited for",
            ),
        ),
        but={
            "computing_on_host": "the line waits for the card, and a callback waits for the line",
            "stuck_kernel": f"no kernel is on {card}",
        },
        next=("read the value from the card before the lock is taken, or let the callback take no lock",),
        culprits=(culprit(node), culprit(other)),
        links=(*links, last),
    )


# The GIL


def held_gil(case: Case) -> Outcome:
    """Fires on a chain that passes the GIL, or on a training thread that keeps it while others ask for it."""
    for chain in case.still_chains:
        if chain.through & {"loader", "pool"}:
            continue
        waiters = gil_waiters(case.history, case.job, chain.end.node)
        if "gil" not in chain.through and not waiters:
            continue
        if wakes_soon(case, chain.end) or chain.end.kind in ("storage", "uninterruptible", "network"):
            continue
        watched, patience = silent_seconds(case, chain), _gil_patience(case, chain)
        rank = case.job.members[chain.start.pid]
        lasts = Lull(watched, (), 1.0) if chain.end.still else lull(case, rank, watched, patience)
        return hung(
            case,
            HELD_GIL,
            chain,
            summary=f"{who(chain)} holds the GIL inside a native call and does not release it",
            patience=patience,
            silent=lasts.seconds,
            ceiling=lasts.ceiling if chain.end.still else RUNS_IN_NATIVE_CODE,
            evidence=(
                *lasts.evidence,
                case.saw(
                    "gil",
                    f"pid {chain.end.node.pid}",
                    "others ask for the GIL and do not get it",
                    f"{len(waiters) or 1} waiting, always owned by thread {chain.end.node.tid} at {show(chain.end.node.frame)}",
                    "the owner changes within milliseconds",
                ),
            ),
            but={"endless_python": "the owner's line does not change and the others never get a turn"},
            next=(stacks_of(chain.end.node.pid, "--native"),),
        )
    return None


def _gil_patience(case: Case, chain: Chain) -> float:
    """A sleep with a far deadline is certain; a computation may end."""
    return STRUCTURAL_SECONDS if outlasts(case, chain.end) or chain.end.still else temporal(case)


RULES = (
    Rule(DEADLOCKED_LOCKS, deadlocked_locks),
    Rule(HELD_GIL, held_gil),
)
