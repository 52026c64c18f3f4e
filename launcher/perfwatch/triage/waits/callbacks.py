"""A thread that waits for its card, which waits for a callback of the program's own, which waits for a lock of that thread.

CUDA runs host functions between the work of a stream, in a thread of its own. One that asks for a lock holds up the stream, and
whoever waits for the stream with that lock in hand waits for ever: at a full core, on a card that has nothing to do.
"""

from dataclasses import dataclass

import msgspec

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.claims.gpu import idle_card_seconds
from perfwatch.triage.hang import hung, who
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.waits.chain import Chain, link
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.node import Node, beside, culprit, waits_forever
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import is_user, show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes import readings as r

CAUSE = "deadlocked_locks"
SEEN = 0.9  # that both mean one lock is told by the text of their lines
STAYS = 0.95  # of the samples: a nonblocking one tears in about 3 %
SPINS = 0.5  # of a core: a thread that waits for its card looks for it all the time


@dataclass(frozen=True)
class HeldCallback:
    """The thread that waits for its card, the callback that waits for it, and the lock between them."""

    chain: Chain
    callback: Node
    lock: str
    card: str  # its name
    source: str  # of what is known about the card
    idle_seconds: float  # for how long nothing has been asked of the card
    silent_seconds: float  # for how long both have stood


def stands_in_sync(case: Case, chain: Chain) -> bool:
    """True if a training thread spins at one line, at a call that waits for its card."""
    node, end = chain.start, chain.end.node
    spins = (end.pid, end.tid) == (node.pid, node.tid) and (node.motion.run_share or 0.0) >= SPINS
    stays = node.motion.samples >= 2 and node.motion.steady_share >= STAYS
    return spins and stays and in_sync(case.history, node.stack)


def held_callback(case: Case, chain: Chain) -> HeldCallback | None:
    """Of a rank that spins at a call which waits for its card, while that card has nothing to do: the callback that keeps both."""
    node, history = chain.start, case.history
    source = line_of(history, node.frame)
    idle = idle_card_seconds(case, node.pid) if source is not None and stands_in_sync(case, chain) else None
    if idle is None or source is None:
        return None
    for other in beside(history, case.job, node):
        theirs = line_of(history, other.frame)
        if theirs is None or not waits_forever(other) or not other.motion.frozen or not _called_back(other.stack):
            continue
        asks = theirs.text.lstrip().startswith(("with ", "async with "))
        shared = [lock for lock in theirs.within if asks and lock in source.within and lock in theirs.text]
        if shared and _one_object(node.frame, other.frame, shared[0]):
            card = regimes(history, node.pid)[0]
            silent = min(idle, other.motion.ran_ago_seconds or 0.0)
            return HeldCallback(chain, other, shared[0], name_of(history, card.uuid), card.source, idle, silent)
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
    """Fires where a training thread and a callback of its card's stream wait for each other."""
    found = next((one for chain in case.chains.values() if (one := held_callback(case, chain)) is not None), None)
    if found is None:
        return None
    chain, other = found.chain, found.callback
    node, line = chain.start, show(other.frame)
    result = hung(
        case,
        CAUSE,
        chain,
        owner="user_code",
        summary=f"{who(chain)} waits for {found.card}, which has nothing to do, and holds {found.lock}; thread {other.tid} at {line}, "
        "which native code has called back, waits for that lock for ever: the card's stream goes on when it returns",
        patience=STRUCTURAL_SECONDS,
        silent=found.silent_seconds,
        ceiling=SEEN,
        evidence=(
            case.saw(
                "thread",
                f"pid {other.pid} thread {other.tid}",
                f"a callback asks for {found.lock} at {line}",
                f"{other.wait.call if other.wait else '?'} without a timeout, last ran {other.motion.ran_ago_seconds or 0.0:.1f} s ago",
                "callbacks return at once",
                other.thread_at,
            ),
            case.saw(
                found.source,
                found.card,
                "has nothing to do while the thread waits for it",
                f"no kernel for {found.idle_seconds:.1f} s",
                "a card that is waited for is at work",
            ),
            case.saw(
                "source",
                show(node.frame) or f"pid {node.pid}",
                f"stands within {found.lock}",
                f"{node.motion.run_share or 0.0:.0%} of a core at one line",
                "the lock is free while the card is waited for",
            ),
        ),
        alternatives=(
            Alternative(
                cause="computing_on_host", refuted_by="the line waits for the card, and a callback waits for the line"
            ),
            Alternative(cause="stuck_kernel", refuted_by=f"no kernel is on {found.card}"),
        ),
        next=("read the value from the card before the lock is taken, or let the callback take no lock",),
    )
    waits = f"{found.card}, which has nothing to do: its stream waits for thread {other.tid}"
    links = tuple(
        msgspec.structs.replace(one, waits_for=waits) if (one.pid, one.tid) == (node.pid, node.tid) else one
        for one in chain.links
    )
    last = link(case.history, other, f"{found.lock}, which {who(chain)} holds", len(links))
    culprits = (culprit(node), culprit(other))
    return msgspec.structs.replace(result, culprits=culprits, wait_chain=(*links, last))
