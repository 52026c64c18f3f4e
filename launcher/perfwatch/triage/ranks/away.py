"""What keeps ranks away from a collective that others wait in: whether it may end by itself, and how it is told."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.loops import may_end
from perfwatch.triage.moving.memory import GUESSED
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.moving.working import MOVING_BYTES, SETTLED, data_of, goes_on
from perfwatch.triage.patience import outlasts, temporal, wakes_soon
from perfwatch.triage.ranks.absence import RUNS, SHOWN
from perfwatch.triage.ranks.exchanges import may_join_beside
from perfwatch.triage.ranks.leaving import over
from perfwatch.triage.shares.going_through import LASTS
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES, Profile, at_training
from perfwatch.triage.waits.asked_for import awaited
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import ENDLESS_SECONDS, Node
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.waits.releasing import named
from perfwatch.triage.waits.threads import OTHERS_MOVE
from perfwatch.triage.words.backing_off import retries
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Evidence, doing

CERTAIN_ENDS = ("dead", "stopped", "lock", "cycle", "gil")
OTHER_WORK = ("pickling", "save", "load", "compile", "import", "http", "group_destroy", "exit")
RECENT_SECONDS = 10.0
SINCE = 0.9  # of the others' wait: as it began, this one may have been in the end of its step
MOSTLY = 0.9  # of the samples; a nonblocking dump tears about 3 %
INFERRED = 0.9  # not all of the one who is away stands still


def named_ranks(absent: list[Chain]) -> str:
    """``ranks 0, 2``."""
    shown = ", ".join(str(chain.start.rank) for chain in absent[:SHOWN])
    more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
    return f"rank{'s' if len(absent) > 1 else ''} {shown}{more}"


def why_absent(case: Case, absent: Chain, left: list[Node], roots: list[Node], holder: Chain | None) -> str:
    """What keeps a rank away: a wait, of others too, or that it is done and its process only waits for threads of its own."""
    end = absent.end
    if holder is not None:
        has = f"rank {holder.start.rank}, which waits at {show(holder.start.frame)} itself"
        return f"{who(absent)} {doing(absent.awaited)}: that is {has}"
    if end.kind == "sleep" and end.node.stack is not None and retries(case, end.node.stack):
        return f"{who(absent)} backs off and tries again and again"
    if not over(absent):
        also = "".join(f", and {named(one, absent.end.node.pid)} for {awaited(one)}" for one in roots[:2])
        return f"{who(absent)} {doing(absent.awaited)}{also}{_around(absent)}"
    until = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else absent.awaited
    return f"its program is over, and {who(absent)} waits for {until}"


def waited(waiting: list[Chain]) -> float:
    """For how long all of these ranks have waited."""
    return min((chain.end.silent_seconds or 0.0 for chain in waiting), default=0.0)


def works(case: Case, chain: Chain, others_waited: float) -> bool:
    """Whether a rank that is elsewhere does something that may end: it moves, is at other work, wakes soon, or others work for it.

    A loop that only sleeps and asks again is no work; whether it lasts, the patience of the ranks that wait tells. One of a thread
    or process that it waits for, which does more than that between its naps, is work at a pace of its own.
    """
    end = chain.end
    if goes_on(case, chain):
        return True
    if brings_no_batch(case, chain, others_waited):
        return False
    if (
        end.kind == "sleep"
        and wakes_soon(case, end)
        and (end.node.motion.ran_ago_seconds or 0.0) >= SINCE * others_waited
    ):
        return True  # one rest that is over soon, and no try since the others wait
    if end.still and not wakes_soon(case, end) and end.node.stack is not None:
        return end.kind not in SETTLED and moves(case.history, end.node.pid, end.node.tid).recurrent
    recent = _recent(case, chain)
    if recent.samples < ENOUGH_SAMPLES or recent.share_where(at_training) or recent.seen(*OTHER_WORK):
        return True
    if end.kind in ("sleep", "file_poll"):
        beside = (end.node.pid, end.node.tid) != (chain.start.pid, chain.start.tid) and not only_asks(
            case.history, end.node
        )
        return beside or end.node.motion.distinct > 1 or moves(case.history, end.node.pid, end.node.tid).recurrent
    return end.kind != "python" or _moves_data(case, chain)


def stood(case: Case, chain: Chain) -> float | None:
    """For how long a rank that is elsewhere has stood in the wait that it is in; None where its waits are those of one loop.

    It may ask for one thing after the other: the others wait for all of them. A loop that sleeps and asks again waits for one.
    """
    end = chain.end
    if not end.still or end.kind in ("sleep", "file_poll"):
        return None
    node = end.node
    since = [end.silent_seconds, moves(case.history, node.pid, node.tid).ago_seconds]
    if node.wait is not None and (node.wait.remaining_seconds or 0.0) > ENDLESS_SECONDS:
        since.append(
            node.motion.ran_ago_seconds
        )  # so long a timeout is no rhythm: the kernel knows when the wait began
    return min((one for one in since if one is not None), default=0.0)


def _moves_data(case: Case, chain: Chain) -> bool:
    """Whether the thread at the end reads or writes itself: no endless loop does."""
    return data_of(case, chain.end.node.pid, [chain.end.node.tid]) >= MOVING_BYTES


def _recent(case: Case, chain: Chain) -> Profile:
    return case.profile(case.job.members[chain.start.pid], seconds=RECENT_SECONDS)


def runs_on(case: Case, absent: Chain) -> bool:
    """Whether a rank that is elsewhere runs something that reaches its end one day, as far as its source tells."""
    return absent.end.kind == "python" and may_end(case.history, absent.end.node)


def brings_no_batch(case: Case, chain: Chain, others_waited: float) -> tuple[Evidence, ...]:
    """What shows that a rank has been in its own loader alone since the others wait, if that is a good part of the patience.

    A loop over data that gives no batch (each sample is filtered out) reads all the while and looks like training; those who
    wait in a collective prove that no step was made.
    """
    if chain.end.kind not in RUNS or others_waited < LASTS * temporal(case):
        return ()
    since = case.profile(case.job.members[chain.start.pid], seconds=SINCE * others_waited)
    trained = since.seen("forward", "backward", "optimizer", "collective")
    if since.samples < ENOUGH_SAMPLES or since.share("loader") < MOSTLY or trained:
        return ()
    looked = f"{since.share('loader'):.0%} of {since.samples} samples, none in a forward or backward pass"
    claim = "is in its loader all the while"
    return (case.saw("stack", f"pid {chain.start.pid}", claim, looked, "a batch, and then a step"),)


def for_good(case: Case, absent: Chain) -> bool:
    """Whether a rank stays away whatever time may bring: it is over, its end settles that, or it sleeps longer than anybody waits."""
    ends = absent.end.kind in CERTAIN_ENDS and absent.end.detail != OTHERS_MOVE
    return ends or over(absent) or outlasts(case, absent.end)


def meets_nobody(case: Case, waiting: list[Chain], absent: list[Chain]) -> bool:
    """Whether ranks wait for others to appear (a key in the store, a new group) who all wait for them: no time heals that.

    A thread beside one of them that rests may set the key yet.
    """
    everybody = [*waiting, *absent]
    asks = all(chain.end.kind == "rendezvous" for chain in absent)
    if not asks or not case.job.covered or len(everybody) < len(case.job.ranks):
        return False
    return not any(may_join_beside(case, chain.start) for chain in everybody)


def holder_waits(case: Case, waiting: list[Chain], absent: Chain) -> Chain | None:
    """The rank that has the file's lock for which an absent one waits, and waits in the collective itself; no thread beside it acts."""
    if absent.end.kind != "file_lock":
        return None
    held = (chain for chain in waiting if chain.start.pid in absent.end.others)
    return next((chain for chain in held if not may_join_beside(case, chain.end.node)), None)


def _around(absent: Chain) -> str:
    """Of a cycle through another process: that the one who is waited for waits as well, and for what."""
    at = (absent.end.node.pid, absent.end.node.tid)
    own = next((n for n, link in enumerate(absent.links) if (link.pid, link.tid) == at), None)
    if absent.end.kind != "cycle" or own is None:
        return ""
    beyond = (link for link in absent.links[own + 1 :] if link.pid != at[0] and link.depth > absent.links[own].depth)
    other = next(beyond, None)
    return "" if other is None else f", which waits at {other.frame or '?'} for {other.waits_for}"


def ceiling(absent: Chain, computes: bool) -> float:
    """How sure it may be at most that a rank does not come: less where somebody may yet bring what it waits for."""
    if computes:
        return GUESSED
    end = absent.end
    rests, beside = end.kind == "sleep" and not end.still, end.kind == "lock" and end.detail == OTHERS_MOVE
    if rests or beside or end.kind in ("file_poll", "rendezvous"):
        return MAY_COME
    return 1.0 if end.still else INFERRED
