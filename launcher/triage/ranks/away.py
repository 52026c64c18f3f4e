"""What keeps ranks away from a collective that others wait in: whether it may end by itself, and how it is told."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import wakes_soon, who
from perfwatch.triage.moving.loops import counts, may_end
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.moving.working import MOVING_BYTES, data_of, goes_on
from perfwatch.triage.ranks.absence import SHOWN
from perfwatch.triage.ranks.leaving import over
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES, Profile, at_training
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node, doing
from perfwatch.triage.waits.releasing import named
from perfwatch.triage.waits.threads import awaited
from perfwatch.triage.words.backing_off import retries
from perfwatch.triage.words.frames import show

OTHER_WORK = ("save", "load", "compile", "import", "http", "group_destroy", "exit")
RECENT_SECONDS = 10.0


def named_ranks(absent: list[Chain]) -> str:
    """``ranks 0, 2``."""
    shown = ", ".join(str(chain.start.rank) for chain in absent[:SHOWN])
    more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
    return f"rank{'s' if len(absent) > 1 else ''} {shown}{more}"


def why_absent(case: Case, absent: Chain, left: list[Node], roots: list[Node]) -> str:
    """What keeps a rank away: a wait, of others too, or that it is done and its process only waits for threads of its own."""
    end = absent.end
    if end.kind == "sleep" and end.node.stack is not None and retries(case, end.node.stack):
        return f"{who(absent)} backs off and tries again and again"
    if not over(absent):
        also = "".join(f", and {named(one, absent.end.node.pid)} for {awaited(one)}" for one in roots[:2])
        return f"{who(absent)} {doing(absent.awaited)}{also}{_around(absent)}"
    until = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else absent.awaited
    return f"its program is over, and {who(absent)} waits for {until}"


def works(case: Case, chain: Chain) -> bool:
    """Whether a rank that is elsewhere does something that may end: it moves, is at other work, wakes soon, or others work for it.

    A loop that only sleeps and asks again is no work; whether it lasts, the patience of the ranks that wait tells.
    """
    end = chain.end
    if goes_on(case, chain):
        return True
    if end.still and not wakes_soon(case, end) and end.node.stack is not None:
        return False
    recent = _recent(case, chain)
    if recent.samples < ENOUGH_SAMPLES or recent.share_where(at_training) or recent.seen(*OTHER_WORK):
        return True
    if end.kind in ("sleep", "file_poll"):
        return end.node.motion.distinct > 1 or moves(case.history, end.node.pid, end.node.tid).recurrent
    return end.kind != "python" or _moves_data(case, chain)


def prepare(case: Case) -> tuple[int, ...]:
    """The ranks that are away from training, and run Python that is work: what they make is for all, perhaps.

    It is work where they read or write meanwhile, or turn in a loop that comes to its end.
    """
    running = [chain for pid, chain in case.chains.items() if case.progress[pid].kind != "moving"]
    away = [one for one in running if one.end.kind == "python" and not _recent(case, one).share_where(at_training)]
    return tuple(one.start.pid for one in away if _moves_data(case, one) or _counts(case, one))


def _counts(case: Case, chain: Chain) -> bool:
    """Whether a rank that was looked at often enough is in a loop over something."""
    return _recent(case, chain).samples >= ENOUGH_SAMPLES and counts(case.history, chain.end.node)


def _moves_data(case: Case, chain: Chain) -> bool:
    """Whether the thread at the end reads or writes itself: no endless loop does."""
    return data_of(case, chain.end.node.pid, [chain.end.node.tid]) >= MOVING_BYTES


def _recent(case: Case, chain: Chain) -> Profile:
    return case.profile(case.job.members[chain.start.pid], seconds=RECENT_SECONDS)


def runs_on(case: Case, absent: Chain) -> bool:
    """Whether a rank that is elsewhere runs something that reaches its end one day, as far as its source tells."""
    return absent.end.kind == "python" and may_end(case.history, absent.end.node)


def lacks_a_key(case: Case, waiting: list[Chain], absent: list[Chain]) -> bool:
    """Whether ranks wait for a key in the store while all who could set it wait for them: no time heals that."""
    asks = all((chain.end.kind, chain.end.detail) == ("rendezvous", "store") for chain in absent)
    return asks and case.job.covered and len(waiting) + len(absent) == len(case.job.ranks)


def _around(absent: Chain) -> str:
    """Of a cycle through another process: that the one who is waited for waits as well, and for what."""
    at = (absent.end.node.pid, absent.end.node.tid)
    own = next((n for n, link in enumerate(absent.links) if (link.pid, link.tid) == at), None)
    if absent.end.kind != "cycle" or own is None:
        return ""
    beyond = (link for link in absent.links[own + 1 :] if link.pid != at[0] and link.depth > absent.links[own].depth)
    other = next(beyond, None)
    return "" if other is None else f", which waits at {other.frame or '?'} for {other.waits_for}"
