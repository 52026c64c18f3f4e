"""The rank that others wait for in a collective: what keeps it away, whether that may end by itself, and how it is reported.

It stands or works elsewhere, has ended, or cannot be seen from here: then only the others' counts tell about it.
"""

from collections.abc import Collection, Sequence

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import fate_of
from perfwatch.triage.graph.model import Prospect
from perfwatch.triage.hang import hung, silent_seconds, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.moving.work import moves_data
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.ranks.calls import (
    RUNS,
    exchange,
    in_collective,
    leaves,
    links,
    listed,
    may_join_beside,
    over,
    rank_of,
)
from perfwatch.triage.ranks.groups import UNHEARD, Seat, counted_apart, growing
from perfwatch.triage.ranks.thresholds import CERTAIN, FEW, HIGH
from perfwatch.triage.ranks.waitgraph import WaitGraph
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES, Profile, at_training
from perfwatch.triage.shares.thresholds import LASTS
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.waits.asked_for import awaited
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import ENDLESS_SECONDS, Node
from perfwatch.triage.waits.releasing import named
from perfwatch.triage.waits.threads import OTHERS_MOVE, other_threads
from perfwatch.triage.words.backing_off import retries
from perfwatch.triage.words.frames import show
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES
from perfwatch.verdict import Culprit, Evidence, Finding, Outcome, doing
from perfwatch_probes.readings import Process, Stack, Thread

STALLED = Cause("stalled_collective", "hung", "user_code", (Process, Thread, Stack))
SETTLED = ("dead", "stopped", "traced", "cycle")  # ends that no work beside them releases
CERTAIN_ENDS = ("dead", "stopped", "lock", "cycle", "gil")
OTHER_WORK = ("pickling", "save", "load", "compile", "import", "http", "group_destroy", "exit")
GONE_SECONDS = 2.0  # of a rank of this host that RAS does not hear from, and of which there is no process here
SINCE = 0.9  # of the others' wait: as it began, this one may have been in the end of its step
MOSTLY = 0.9  # of the samples; a nonblocking dump tears about 3 %


# Does it come by itself?


def at_rest(case: Case) -> bool:
    """True if no rank here is seen at work, and at least one of them waits for others in a collective, or for a call of theirs.

    To ask a rank's flight recorder leaves a line on the job's standard error that looks like a failure. So no rank is asked that may
    be at work: not while the job starts, makes steps, evaluates or saves, nor while one rank is late.
    """
    if not case.ranks or any(one.kind == "moving" for one in case.progress.values()) or growing(case):
        return False
    if counted_apart(case) is not None:
        return True
    elsewhere = {pid: chain for pid, chain in case.chains.items() if not in_collective(case, chain)}
    return len(elsewhere) < len(case.chains) and all(
        case.progress[pid].kind == "still" and chain.end.still is True and not wakes_soon(case, chain.end)
        for pid, chain in elsewhere.items()
    )


def works(case: Case, chain: Chain, others_waited: float) -> bool:
    """True if a rank that is elsewhere does something that may end: it moves, is at other work, wakes soon, or others work for it.

    A loop that only sleeps and asks again is no work; whether it lasts, the patience of the ranks that wait tells. One of a thread
    or process that it waits for is work at a pace of its own.
    """
    end = chain.end
    fate = fate_of(case, chain.start.pid)
    if fate is not None and fate.prospect is Prospect.LIVE and end.still:
        return True
    if brings_no_batch(case, chain, others_waited):
        return False
    wakes, moved = wakes_soon(case, end), moves(case.history, end.node.pid, end.node.tid)
    if end.kind == "sleep" and wakes and (end.node.motion.ran_ago_seconds or 0.0) >= SINCE * others_waited:
        return True  # one sleep that is over soon, and no try since the others wait
    if end.still and not wakes and end.node.stack is not None:
        return end.kind not in SETTLED and moved.recurrent
    recent = _recent(case, chain)
    if recent.samples < ENOUGH_SAMPLES or recent.share_where(at_training) or recent.seen(*OTHER_WORK):
        return True
    if end.kind in ("sleep", "file_poll"):
        beside = (end.node.pid, end.node.tid) != (chain.start.pid, chain.start.tid)
        return beside or end.node.motion.distinct > 1 or moved.recurrent
    return end.kind != "python" or moves_data(case.history, chain.end.node)


def stood(case: Case, chain: Chain) -> float | None:
    """For how long a rank that is elsewhere has been in the wait that it is in; None where its waits are those of one loop.

    It may ask for one thing after the other: the others wait for all of them. A loop that sleeps and asks again waits for one.
    """
    end = chain.end
    if not end.still or end.kind in ("sleep", "file_poll"):
        return None
    node = end.node
    since = [end.silent_seconds, moves(case.history, node.pid, node.tid).ago_seconds]
    if node.wait is not None and (node.wait.remaining_seconds or 0.0) > ENDLESS_SECONDS:
        since.append(node.motion.ran_ago_seconds)  # no rhythm has so long a timeout: the kernel knows when it began
    return min((one for one in since if one is not None), default=0.0)


def _recent(case: Case, chain: Chain) -> Profile:
    return case.profile(case.job.members[chain.start.pid], seconds=WINDOW_SECONDS)


def runs_on(case: Case, absent: Chain) -> bool:
    """True if a rank that is elsewhere runs something that reaches its end one day, as far as its source tells."""
    return absent.end.kind == "python" and not loop_of(case.history, absent.end.node).may_turn_for_ever


def brings_no_batch(case: Case, chain: Chain, others_waited: float) -> tuple[Evidence, ...]:
    """What shows that a rank has been in its own loader alone since the others wait, if that is a good part of the patience.

    A loop over data that gives no batch (each sample is filtered out) reads all the while and looks like training; the ranks that
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
    """True if a rank stays away whatever time may bring: its program is over, its end settles that, or it sleeps for too long."""
    ends = absent.end.kind in CERTAIN_ENDS and absent.end.detail != OTHERS_MOVE
    return ends or over(absent) or outlasts(case, absent.end)


def waits_for_all(case: Case, waiting: list[Chain], absent: list[Chain]) -> bool:
    """True if ranks wait for others to appear (a key in the store, a new group) that all wait for them: no time heals that.

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


def ceiling(absent: Chain, computes: bool) -> float:
    """How sure it may be at most that a rank does not come: less where what it waits for may yet come."""
    end = absent.end
    rests, beside = end.kind == "sleep" and not end.still, end.kind == "lock" and end.detail == OTHERS_MOVE
    if computes or rests or beside or end.kind in ("file_poll", "rendezvous"):
        return MAY_COME
    return 1.0


def is_unread(case: Case, chain: Chain) -> bool:
    """True if it is not known what a rank does: neither its stack nor what it is blocked in."""
    node = chain.end.node
    seen = node.stack is not None or node.wait is not None or case.profile(case.job.members[chain.start.pid]).samples
    return not seen and chain.end.kind not in ("dead", "stopped")


def others_train(case: Case, pid: int) -> bool:
    """True if a rank is done and another one is not: it has more to wait for than the end of this one's threads."""
    others = [chain for other, chain in case.chains.items() if other != pid]
    if leaves(case.chains[pid]):
        return any(not leaves(chain) for chain in others)
    return case.job.covered and any(in_collective(case, chain) and not over(chain) for chain in others)


def left_over(case: Case, chain: Chain) -> list[Node]:
    """The program's own threads that go on while the interpreter waits for all that are not daemons."""
    end = chain.end.node
    frames = end.stack.frames if end.stack is not None else ()
    if not any(frame.function == "_shutdown" and frame.file.endswith("/threading.py") for frame in frames):
        return []
    return [one for one in other_threads(case.history, case.job, end) if one.frame is not None][:FEW]


# Has it ended?


def missed(case: Case, graph: WaitGraph | None) -> list[Member]:
    """Ranks that have ended and may be waited for, those first that failed; only these where the groups tell who is waited for."""
    gone = sorted(
        (rank for rank in case.job.ranks if not rank.alive), key=lambda one: (_is_done(one), not _failed(one))
    )
    if graph is None or not graph.edges or any(seat.rank is None for seat in graph.ends):
        return gone
    targets = {rank for edges in graph.edges.values() for rank in edges}
    return [rank for rank in gone if rank.rank in targets]


def blamed(gone: Sequence[Member], absent: Collection[Chain], graph: WaitGraph | None, at_work: bool) -> Member | None:
    """The rank whose end keeps the others waiting; None where that may be one that lives.

    One that was killed or has failed mostly does. One that came to its end may be in no group that goes on: its work is done, and
    the others wait for one that still evaluates, or stands.

    Args:
        gone: as ``missed``.
        absent: ranks that live and have not come either.
        graph: where it shows who waits for whom, the ranks that have ended are among those.
        at_work: whether one of the absent ones does something that may end.
    """
    if not gone or not absent or (graph is not None and graph.edges) or _failed(gone[0]):
        return gone[0] if gone else None
    return None if at_work or _is_done(gone[0]) else gone[0]


def _is_done(rank: Member) -> bool:
    return rank.ended is not None and rank.ended.exit_code == 0


def _failed(rank: Member) -> bool:
    return rank.ended is not None and bool(rank.ended.exit_code or rank.ended.signal)


# How it is reported


def call(graph: WaitGraph | None, waiting: list[Chain]) -> str:
    """What they wait in, as the recorders name it; failing that, as the stacks do."""
    named = [graph.calls.get(rank_of(chain), "") for chain in waiting] if graph is not None else []
    stands = waiting[0].awaited if waiting[0].end.kind == "collective" else "the collective that the others are in"
    return next((name for name in named if name), stands)


def calls_of(graph: WaitGraph | None, waiting: list[Chain]) -> dict[int, str]:
    """By rank, what it waits in."""
    op, known = call(graph, waiting), graph.calls if graph is not None else {}
    return {rank_of(chain): known.get(rank_of(chain), op) for chain in waiting}


def unseen(case: Case, waiting: list[Chain], graph: WaitGraph, seat: Seat) -> Outcome:
    """The rank at the end is on another machine, may not be looked at, or is gone: only the others' counts tell about it.

    What it does is not known: it may write a checkpoint. So it gets the whole hang timeout.
    """
    if not waiting:
        return None
    lost, op = seat.state in UNHEARD, call(graph, waiting)
    if lost and not seat.host and seat.pid is None and len(case.ranks) < (case.job.world_size or 0):
        why = f"is gone, and never joined {op}: no process of it is here any more, and RAS does not hear from it"
        advice = "no process of that rank is here any more: look at what it printed last, and for the OOM killer in the kernel log"
        patience = GONE_SECONDS
    else:
        why = f"never joined {op}: it has called less often than the others, and no count grows"
        why += ", and RAS does not hear from it" if lost else ""
        advice = f"perfwatch attach on {seat.host or 'the node of that rank'}: its own stack says why"
        if seat.pid in case.chains:
            advice = f"sudo $(command -v perfwatch) attach {seat.pid}: its own stack says why"
        patience = STRUCTURAL_SECONDS if lost else temporal(case)
    found = hung(
        case,
        STALLED.name,
        waiting[0],
        owner=STALLED.owner,
        summary=f"{seat.name} {why}; {listed([rank_of(chain) for chain in waiting])} for it",
        patience=patience,
        silent=graph.seconds,
        evidence=graph.evidence(case),
        ceiling=CERTAIN,
        next=(advice,),
    )
    culprit = Culprit(pid=seat.pid or 0, rank=seat.rank, host=seat.host or None)
    return msgspec.structs.replace(found, culprits=(culprit,), wait_chain=links(case, waiting, graph.calls))


def ended(case: Case, waiting: Chain, gone: Member, graph: WaitGraph | None) -> Finding:
    """A rank of this host has ended, and another one waits for it."""
    op = call(graph, [waiting])
    found = hung(
        case,
        STALLED.name,
        waiting,
        owner=STALLED.owner,
        summary=f"rank {gone.rank} (pid {gone.pid}) is gone and rank {waiting.start.rank} waits for it in {op}",
        patience=STRUCTURAL_SECONDS,
        silent=None if graph is None else max(graph.seconds, silent_seconds(case, waiting)),
        evidence=(_has_ended(case, gone), *(graph.evidence(case) if graph is not None else ())),
        next=("dmesg | grep -i 'killed process'",),
    )
    return msgspec.structs.replace(
        found,
        culprits=(Culprit(pid=gone.pid, rank=gone.rank),),
        wait_chain=links(case, [waiting], {rank_of(waiting): op}),
    )


def left_behind(case: Case, gone: Sequence[Member]) -> Finding | None:
    """Ranks stay in a collective of MPI after another one has ended; it may be one of a communicator that this one was not in."""
    waiting = [chain for chain in case.still_chains if exchange(case, chain, MPI_COLLECTIVES)]
    line = exchange(case, waiting[0], MPI_COLLECTIVES) if waiting and gone else None
    if line is None:
        return None
    lost = gone[0]
    ranks = listed([rank_of(chain) for chain in waiting])
    found = hung(
        case,
        STALLED.name,
        waiting[0],
        owner=STALLED.owner,
        summary=f"rank {lost.rank} (pid {lost.pid}) is gone and {ranks} for it: {line.text.strip()[:80]}",
        patience=temporal(case),
        ceiling=HIGH,
        evidence=(_has_ended(case, lost),),
        next=("look at what that rank printed last: did it leave a loop earlier than the others?",),
    )
    return msgspec.structs.replace(found, culprits=(Culprit(pid=lost.pid, rank=lost.rank),))


def _has_ended(case: Case, gone: Member) -> Evidence:
    return case.saw("process", f"rank {gone.rank}", "is gone", f"pid {gone.pid} has ended", "alive")


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
        return f"{who(absent)} {doing(absent.awaited)}{also}"
    until = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else absent.awaited
    return f"its program is over, and {who(absent)} waits for {until}"
