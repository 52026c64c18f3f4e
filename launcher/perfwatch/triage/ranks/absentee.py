"""Ranks that others wait for: what keeps one away, whether that may end by itself, and how that is reported.

A rank that has not come stands or works elsewhere, has ended, or cannot be seen from here: then only the others' counts tell about it.
"""

from collections.abc import Collection, Sequence

from perfwatch.triage.case import Case
from perfwatch.triage.graph.builder import loads_alone
from perfwatch.triage.graph.decide import ends_at, fate_for_others
from perfwatch.triage.graph.from_case import in_call, wait_graph_of
from perfwatch.triage.graph.model import Prospect
from perfwatch.triage.hang import Place, hang_between, listed, named, rank_of, silent_seconds, who
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal, wakes_soon
from perfwatch.triage.ranks.calls import exchange, leaves, over
from perfwatch.triage.ranks.groups import FEW, UNHEARD, Seat, WaitGraph, counted_apart, growing
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.locks import awaited as what_it_awaits
from perfwatch.triage.waits.node import RUNS, Node
from perfwatch.triage.waits.threads import other_threads
from perfwatch.triage.words.code import retries
from perfwatch.triage.words.frames import show
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES
from perfwatch.verdict import Evidence, Finding, Level, Outcome, doing
from perfwatch_probes.readings import Process, Stack, Thread

STALLED = Cause("stalled_collective", "hung", "user_code", (Process, Thread, Stack))
GONE_SECONDS = 2.0  # of a rank of this host that RAS does not hear from, and of which there is no process here


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
    elsewhere = {pid: chain for pid, chain in case.chains.items() if not in_call(case, chain)}
    return len(elsewhere) < len(case.chains) and all(
        case.progress[pid].kind == "still" and chain.end.still is True and not wakes_soon(case, chain.end)
        for pid, chain in elsewhere.items()
    )


def comes(case: Case, chain: Chain) -> bool:
    """True if a rank that is elsewhere does something that may end: it works, or a task works for it or looks up now and then.

    Of one that waits for its card the rules about kernels know more.
    """
    if case.progress[chain.start.pid].kind == "moving" or chain.end.kind == "gpu":
        return True
    prospect = fate_for_others(case, chain.start.pid).prospect
    return prospect is Prospect.LIVE or (prospect is Prospect.DUE and ends_at(case, chain.start.pid) is None)


def holder_waits(waiting: list[Chain], absent: Chain) -> Chain | None:
    """The rank that has the file's lock for which an absent one waits, and waits in the collective itself."""
    locked = absent.end.kind == "file_lock"
    return next((chain for chain in waiting if locked and chain.start.pid in absent.end.others), None)


def brings_no_batch(case: Case, chain: Chain) -> tuple[Evidence, ...]:
    """What shows that a rank has been in its own loader alone since the others wait."""
    runs = chain.end.kind in RUNS
    waited = wait_graph_of(case).others_waited
    since = loads_alone(case, case.job.members[chain.start.pid], waited) if runs else None
    if since is None:
        return ()
    looked = f"{since.share('loader'):.0%} of {since.samples} samples, none in a forward or backward pass"
    claim = "is in its loader all the while"
    return (case.saw("stack", f"pid {chain.start.pid}", claim, looked, "a batch, and then a step"),)


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
    return case.job.covered and any(in_call(case, chain) and not over(chain) for chain in others)


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
    gone = [rank for rank in case.job.ranks if not rank.alive]
    gone.sort(key=lambda one: (one.ended is not None and one.ended.exit_code == 0, not _failed(one)))
    if graph is None or not graph.edges or any(seat.rank is None for seat in graph.ends):
        return gone
    targets = {rank for edges in graph.edges.values() for rank in edges}
    return [rank for rank in gone if rank.rank in targets]


def lost(gone: Sequence[Member], absent: Collection[Chain], graph: WaitGraph | None, at_work: bool) -> Member | None:
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
    ended = gone[0].ended
    return None if at_work or (ended is not None and ended.exit_code == 0) else gone[0]


def _failed(rank: Member) -> bool:
    return rank.ended is not None and bool(rank.ended.exit_code or rank.ended.signal)


# How it is reported


def calls_of(graph: WaitGraph | None, waiting: Sequence[Chain]) -> tuple[str, list[Place]]:
    """What ranks wait in, as the recorders name it, or else as the stacks do: of the first of which it is known, and of each."""
    known = graph.calls if graph is not None else {}
    stands = waiting[0].awaited if waiting[0].end.kind == "collective" else "the collective that the others are in"
    op = next((name for chain in waiting if (name := known.get(rank_of(chain)))), stands)
    return op, [Place.of(chain, known.get(rank_of(chain), op)) for chain in waiting]


def unseen(case: Case, waiting: list[Chain], graph: WaitGraph, seat: Seat) -> Outcome:
    """The rank at the end is on another machine, may not be looked at, or is gone: only the others' counts tell about it.

    What it does is not known: it may write a checkpoint. So it gets the whole hang timeout.
    """
    if not waiting:
        return None
    gone, (op, places) = seat.state in UNHEARD, calls_of(graph, waiting)
    patience = STRUCTURAL_SECONDS if gone else temporal(case)
    why = f"never joined {op}: it has called less often than the others, and no count grows"
    why += ", and RAS does not hear from it" if gone else ""
    advice = f"perfwatch attach on {seat.host or 'the node of that rank'}: its own stack says why"
    if gone and not seat.host and seat.pid is None and len(case.ranks) < (case.job.world_size or 0):
        patience = GONE_SECONDS
        why = f"is gone, and never joined {op}: no process of it is here any more, and RAS does not hear from it"
        advice = "no process of that rank is here any more: look at what it printed last, and for the OOM killer in the kernel log"
    elif seat.pid in case.chains:
        advice = f"sudo $(command -v perfwatch) attach {seat.pid}: its own stack says why"
    return hang_between(
        case,
        STALLED,
        waiting,
        f"{seat.name} {why}; {listed(waiting)} for it",
        patience=patience,
        stood=graph.seconds,
        evidence=graph.evidence(case),
        places=places,
        culprits=(Place(seat.rank, seat.pid or 0, "", host=seat.host or None),),
        advice=(advice,),
    )


def ended(case: Case, waiting: Chain, gone: Member, graph: WaitGraph | None) -> Finding:
    """A rank of this host has ended, and another one waits for it."""
    op, places = calls_of(graph, [waiting])
    return hang_between(
        case,
        STALLED,
        [waiting],
        f"rank {gone.rank} (pid {gone.pid}) is gone and rank {waiting.start.rank} waits for it in {op}",
        stood=None if graph is None else max(graph.seconds, silent_seconds(case, waiting)),
        evidence=(_has_ended(case, gone), *(graph.evidence(case) if graph is not None else ())),
        places=places,
        culprits=(Place(gone.rank, gone.pid, ""),),
        advice=("dmesg | grep -i 'killed process'",),
    )


def left_behind(case: Case, gone: Sequence[Member]) -> Finding | None:
    """Ranks stay in a collective of MPI after another one has ended; it may be one of a communicator that this one was not in."""
    waiting = [chain for chain in case.still_chains if exchange(case, chain, MPI_COLLECTIVES)]
    line = exchange(case, waiting[0], MPI_COLLECTIVES) if waiting and gone else None
    if line is None:
        return None
    place = line.text.strip()[:80]
    return hang_between(
        case,
        STALLED,
        waiting,
        f"rank {gone[0].rank} (pid {gone[0].pid}) is gone and {listed(waiting)} for it: {place}",
        patience=temporal(case),
        ceiling=Level.HIGH,
        evidence=(_has_ended(case, gone[0]),),
        places=[Place.of(chain, place) for chain in waiting],
        culprits=(Place(gone[0].rank, gone[0].pid, ""),),
        advice=("look at what that rank printed last: did it leave a loop earlier than the others?",),
    )


def _has_ended(case: Case, gone: Member) -> Evidence:
    return case.saw("process", f"rank {gone.rank}", "is gone", f"pid {gone.pid} has ended", "alive")


def why_absent(case: Case, absent: Chain, left: list[Node], roots: list[Node], holder: Chain | None) -> str:
    """What keeps a rank away: a wait, of others too, or that it is done and its process only waits for threads of its own."""
    end = absent.end
    if holder is not None:
        has = f"rank {holder.start.rank}, which waits at {show(holder.start.frame)} itself"
        return f"{who(absent)} {doing(absent.awaited)}: that is {has}"
    if end.kind == "sleep" and end.node.stack is not None and retries(case.history, end.node.stack):
        return f"{who(absent)} backs off and tries again and again"
    if not over(absent):
        also = "".join(f", and {named(one, absent.end.node.pid)} for {what_it_awaits(one)}" for one in roots[:2])
        return f"{who(absent)} {doing(absent.awaited)}{also}"
    until = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else absent.awaited
    return f"its program is over, and {who(absent)} waits for {until}"
