"""Threads of one process that keep each other waiting: for a lock, for a callback of CUDA, or for the GIL.

CUDA runs host functions between the work of a stream, in a thread of its own. One that asks for a lock holds up the stream, and
a thread that waits for the stream with that lock in hand waits for ever: at a full core, on a card that has nothing to do.
"""

from collections import Counter
from dataclasses import dataclass, replace
from math import inf

import msgspec

from perfwatch.triage.cards.gpu import idle_card_seconds, regimes
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import last_words, raised_at
from perfwatch.triage.graph.decide import patience_of, wait_graph_of, wakes_soon
from perfwatch.triage.graph.model import Ends
from perfwatch.triage.hang import (
    held_up,
    hung,
    is_settled,
    named,
    nearest,
    partners,
    silent_seconds,
    stacks_of,
    stands_in_sync,
    turn_of,
    undrained,
    who,
)
from perfwatch.triage.independence import MAY_COME, ONE_SOURCE
from perfwatch.triage.moving.memory import Lull, lull
from perfwatch.triage.moving.motion import gil_passed_at, has_ended
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.waits.chain import Chain, link
from perfwatch.triage.waits.libraries import ANSWER, ITS_NEXT_CALL, REMOTE, may_ask
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
from perfwatch.triage.waits.threads import (
    A_TASK,
    MAY,
    OTHERS_MOVE,
    OUTSIDE_HELD,
    awaited,
    called_from,
    gil_waiters,
    holds,
    in_kernel,
    other_threads,
    takes_again,
)
from perfwatch.triage.words.code import line_of, lock_taken
from perfwatch.triage.words.frames import is_user, show
from perfwatch.verdict import Abstention, Culprit, Evidence, Finding, Level, Missing, Outcome
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Descriptor, Frame, Stack, Thread, ThreadError

DEADLOCKED_LOCKS = Cause("deadlocked_locks", "hung", "user_code", (Thread, Stack))
SILENT_TASKS = "a failed task reports nothing until it is awaited: use asyncio.TaskGroup, or add_done_callback"
AWAIT = "in a coroutine, await the future: .result() never returns there"
SHOWN = 3
ALIVE_SECONDS = 30.0  # since a byte came: gRPC's signs of life come every ten


HELD_GIL = Cause("held_gil", "hung", "user_code", (Thread, Stack))

BLOCKED = DEADLOCKED_LOCKS.line("""
    {who} is blocked{within} on {lock}{told}
    - not endless_python: the thread does not run
    - next: {advice}
""")
SILENT_IN_NATIVE_CODE = replace(DEADLOCKED_LOCKS, owner="unknown").line("""
    {who} waits {what}; nothing that might produce it works: no other thread of its process, and no process that it
    started[{elsewhere:if}; the process that answers may be on another machine]
    - not downloading: no data moves on its connections
    - next: perfwatch capture stacks {pid} --native
""")
CALLED_BACK = DEADLOCKED_LOCKS.line("""
    {who} waits for {card}, which has nothing to do, and holds {lock}; thread {tid} at {line}, which native code has called back, is
    blocked on that lock with no timeout: the card's stream continues when it returns
    - saw thread of pid {pid} thread {tid}: a callback asks for {lock} at {line} | {call} without a timeout, last ran {ran_ago:time} ago
      | callbacks return at once
    - saw {source} of {card}: has nothing to do while the thread waits for it | no kernel for {idle:time}
      | a card that is waited for is at work
    - not computing_on_host: the line waits for the card, and a callback waits for the line
    - not stuck_kernel: no kernel is on {card}
    - next: read the value from the card before the lock is taken, or let the callback take no lock
""")
KEEPS_THE_GIL = HELD_GIL.line("""
    {who} holds the GIL inside a native call and does not release it
    - saw gil: others ask for the GIL and do not get it | {waiting} waiting, always owned by thread {tid} at {at}
      | the owner changes within milliseconds
    - not endless_python: the owner's line does not change and the others never get the GIL
    - next: perfwatch capture stacks {pid} --native
""")


# Locks


def deadlocked_locks(case: Case) -> Outcome:
    """Fires on a chain that ends in a lock or a cycle of waits."""
    found = nearest(_deadlock_of(case, chain) for chain in case.still_chains)
    return found if isinstance(found, Finding) else by_callback(case) or found


def _deadlock_of(case: Case, chain: Chain) -> Outcome:
    end = chain.end
    if end.kind not in ("lock", "cycle", NATIVE_WAIT) or not end.still:
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
    end, node = chain.end, chain.end.node
    moving = end.kind == "lock" and (end.detail == OTHERS_MOVE or not is_settled(case, chain))
    elsewhere = bool(node.wait and node.wait.shared and end.others) and case.job.members.keys() >= set(end.others)
    doubtful = moving or end.detail == OUTSIDE_HELD or may_ask(case.history, case.job, node)
    # who lets go on the process or the actor that may release it is not known
    ceiling = MAY_COME if doubtful else Level.HIGH if elsewhere or REMOTE in chain.through else 1.0
    own = taken_by_itself(case, chain)
    beside = [] if own is not None else partners(case, chain, moving)
    loops = [one for one in (node, *beside) if "futures_wait" in one.inner and EVENT_LOOP in one.tags]  # turn no more
    ended = ended_beside(case, chain)[:SHOWN] if end.kind == "lock" else []
    lock = turn_of(chain) if end.kind == "cycle" else awaited(node)
    told = why_nobody_comes(end, lock, beside, elsewhere=elsewhere, moving=moving)
    if own is not None:
        lock, told = f"a lock that it has taken itself at {show(own)}", ""
    resting = idle_loops(case, chain) if moving and not beside else []
    told += "".join(f"; {named(p, node.pid)} is in an event loop in which nothing is due" for p in resting[:SHOWN])
    told += "".join(f"; {named(p, node.pid)} blocks its own event loop" for p in loops[:1])
    told += "".join(f"; {one.told}" for one in ended)
    within = "" if "remote_get" in node.inner else f" with {'a' if has_timeout(node) else 'no'} timeout"
    suspects = [node_of(case.history, case.job, pid) for pid in end.others] if elsewhere else [*beside, *resting]
    first_of_all = held_up(node, beside) if end.kind == "lock" and not elsewhere else []
    blamed = [culprit(p) for p in dict.fromkeys((*loops, *first_of_all, node, *suspects))]
    lost = [one.culprit for one in ended]
    first = any(one.error is not None for one in ended) or len(lost) == len(blamed) == 1
    return hung(
        case,
        BLOCKED,
        chain,
        evidence=(*(waits_too(case, p) for p in beside[:SHOWN]), *(one.evidence(case) for one in ended)),
        ceiling=ceiling,
        culprits=(*lost, *blamed) if first else (*blamed, *lost),
        **Facts(within=within, lock=lock, told=told),
        advice=AWAIT if loops else SILENT_TASKS if lock == A_TASK else stacks_of(node.pid, "--threads"),
    )


def idle_loops(case: Case, chain: Chain) -> list[Node]:
    """Threads of the program's own in an event loop that has nothing due: no timer and no task that could run; only news from outside.

    asyncio asks its selector without a timeout then (CPython, asyncio/base_events.py, ``_run_once``). Loops that a library keeps
    for itself (fsspec's, a tracker's) mostly rest so.
    """
    others = other_threads(case.history, case.job, chain.end.node)
    waiting = [n for n in others if n.wait is not None and n.wait.kind == "poll" and n.wait.forever and n.motion.frozen]
    return [n for n in waiting if EVENT_LOOP in n.inner and n.stack is not None and any(map(is_user, n.stack.frames))]


def taken_by_itself(case: Case, chain: Chain) -> Frame | None:
    """Where the end of a chain took the lock that it waits for, as its lines tell; None where another thread may have one of that name.

    A thread that waits beside it for the same lock is a victim.
    """
    node = chain.end.node
    frame = takes_again(case.history, node) if chain.end.kind == "lock" and not chain.end.detail else None
    lock = lock_taken(line_of(case.history, node.frame))
    others = other_threads(case.history, case.job, node) if frame is not None else []
    return None if any(holds(case.history, one, lock) for one in others) else frame


def why_nobody_comes(end: End, lock: str, beside: list[Node], *, elsewhere: bool, moving: bool) -> str:
    """Of a wait for a lock, in words: who waits with it, or who may hold it (``elsewhere``: another process)."""
    if elsewhere or end.detail == OUTSIDE_HELD:
        pids = f"pid {', '.join(map(str, end.others[:SHOWN]))}" if elsewhere else "a process outside the job"
        return f"; {pids} {MAY.get(lock, 'may hold')} it"
    if beside:
        waits = Counter((named(p, end.node.pid), awaited(p)) for p in beside)
        alike = [
            (name if times == 1 else f"{times} other threads {name.removeprefix('thread ')}")
            + (f" on {own}" if end.kind == "lock" and own != lock else "")
            for (name, own), times in waits.items()
        ]
        return f"; so {'are' if len(beside) > 1 else 'is'} {' and '.join(alike[:SHOWN])}"
    if moving:
        return f"; no thread was seen to {'wake' if lock == A_TASK else 'release'} it"
    return "; no running thread can release it"


def waits_too(case: Case, node: Node) -> Evidence:
    """A thread that waits beside the one at the end of the chain."""
    call = f"{node.wait.call if node.wait else '?'} without a timeout"
    entity = f"pid {node.pid} thread {node.tid}"
    return case.saw("thread", entity, f"waits too, at {show(node.frame)}", call, "one of them runs")


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
    ceiling = ONE_SOURCE if elsewhere else MAY_COME
    return hung(case, SILENT_IN_NATIVE_CODE, chain, ceiling=ceiling, what=what, elsewhere=elsewhere)


def may_be_elsewhere(case: Case, end: End) -> bool:
    """True if a wait is for what others of a cluster make, and another machine keeps in touch; or for a call of unknown origin."""
    keys = case.history.of(Descriptor, end.node.pid) if "remote_get" in end.node.inner else ()
    files = [seen for key in keys if (seen := case.history.latest(Descriptor, *key)) is not None]
    known = [(one.reading.socket, case.at - one.at) for one in files if one.reading.socket is not None]
    remote = [(one, age) for one, age in known if one.local.rpartition(":")[0] != one.peer.rpartition(":")[0]]
    ages = [one.received_ago_seconds + age for one, age in remote if one.received_ago_seconds is not None]
    return end.detail == ITS_NEXT_CALL or min(ages, default=ALIVE_SECONDS + 1) <= ALIVE_SECONDS


# A thread that has ended

ENDED_SECONDS = 90.0  # before the wait began; a calm job's stacks are read once a minute
LASTS_SECONDS = 5.0  # what a thread has put into a queue keeps the training going so long, when it has ended
ONE_LOOK_SECONDS = 0.5  # the stacks of one look differ by so much


@dataclass(frozen=True)
class EndedThread:
    """A thread that is no more, as it was last seen, and the error that it ended with, if any is known."""

    node: Node
    error: ThreadError | None

    @property
    def where(self) -> str | None:
        """Its last known line, ``function (file:line)``."""
        return (raised_at(self.error) if self.error is not None else None) or show(self.node.frame)

    @property
    def told(self) -> str:
        """That it has ended, in words."""
        name = f"thread {self.node.name or self.node.tid}"
        if self.error is None:
            return f"{name}, last seen at {self.where}, has ended"
        return f"{name} has ended at {self.where} with {last_words(self.error)}"

    @property
    def culprit(self) -> Culprit:
        """The thread as a culprit."""
        return msgspec.structs.replace(culprit(self.node), frame=self.where)

    def evidence(self, case: Case) -> Evidence:
        """What speaks for it."""
        entity = f"pid {self.node.pid} thread {self.node.tid}"
        if self.error is not None:
            return case.saw("traceback", entity, "ended with an error", last_words(self.error), "no exception")
        return case.saw("thread", entity, "is gone", f"last seen at {self.where}", "is alive")


def ended_beside(case: Case, chain: Chain) -> list[EndedThread]:
    """Those of the waiting thread's process that ended when the wait began, or not long before.

    One without an error must have been seen in the last look that was made well before the wait, or after it: one that had
    ended by then ended as it should, for the job went on without it.
    """
    end, history = chain.end.node, case.history
    if end.wait is not None and end.wait.shared:
        return []
    began = case.at - (chain.end.silent_seconds or 0.0)
    since = began - ENDED_SECONDS
    looks = [one.at for one in history.series(Stack, end.pid, end.pid) if one.at < began - LASTS_SECONDS]
    stacks = {tid: history.series(Stack, end.pid, tid)[-1] for _, tid in history.of(Stack, end.pid)}
    errors = {tid: history.series(ThreadError, end.pid, tid)[-1] for _, tid in history.of(ThreadError, end.pid)}
    seen = [
        tid
        for tid, last in stacks.items()
        if tid not in errors and last.at >= since and any(map(is_user, last.reading.frames))
        if not looks or last.at >= looks[-1] - ONE_LOOK_SECONDS
    ]
    raised = [tid for tid, error in errors.items() if error.at >= since]
    return [
        EndedThread(node_of(history, case.job, end.pid, tid), errors[tid].reading if tid in errors else None)
        for tid in (*raised, *seen)
        if tid in errors or has_ended(history, end.pid, tid)
    ]


# A callback of CUDA


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
    """True if native code called into Python: a thread that Python has started begins in the library, and has a name."""
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
    node = chain.start
    regime = regimes(case.history, node.pid)[0]
    card, ran_ago = name_of(case.history, regime.uuid), other.motion.ran_ago_seconds or 0.0
    waits = f"{card}, which has nothing to do: its stream waits for thread {other.tid}"
    links = tuple(
        msgspec.structs.replace(one, waits_for=waits) if (one.pid, one.tid) == (node.pid, node.tid) else one
        for one in chain.links
    )
    last = link(case.history, other, f"{lock}, which {who(chain)} holds", len(links))
    facts = Facts(
        card=card, lock=lock, tid=other.tid, line=show(other.frame), ran_ago=ran_ago, idle=idle, source=regime.source
    )
    facts["call"] = other.wait.call if other.wait else "?"
    blamed, silent = (culprit(node), culprit(other)), min(idle, ran_ago)
    return hung(
        case,
        CALLED_BACK,
        chain,
        patience=STRUCTURAL_SECONDS,
        silent=silent,
        culprits=blamed,
        links=(*links, last),
        **facts,
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
        if (not waiters and wakes_soon(case, chain.end)) or chain.end.kind in ("storage", "uninterruptible", "network"):
            continue
        end, watched, patience = chain.end.node, silent_seconds(case, chain), patience_of(case, chain.start.pid)
        passed = gil_passed_at(case.history, end.pid, end.tid)
        loop = wait_graph_of(case).loops.get(("thread", end.pid, end.tid))
        if passed > -inf and (loop is None or loop.ends is not Ends.ONE_CALL):
            continue  # it comes back from what it calls
        rank = case.job.members[chain.start.pid]
        lasts = Lull(watched, (), 1.0) if chain.end.still else lull(case, rank, watched, patience)
        return hung(
            case,
            KEEPS_THE_GIL,
            chain,
            patience=patience,
            silent=min(lasts.seconds, case.at - passed),
            ceiling=lasts.ceiling if chain.end.still else MAY_COME,
            evidence=lasts.evidence,
            **Facts(waiting=len(waiters) or 1, tid=chain.end.node.tid),
        )
    return None


RULES = (Rule(DEADLOCKED_LOCKS, deadlocked_locks), Rule(HELD_GIL, held_gil))
