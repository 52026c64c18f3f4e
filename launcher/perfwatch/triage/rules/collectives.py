"""Hangs in calls between ranks: one rank never joined (stalled), the calls differ (mismatched), or all are in one (wedged).

In which call each rank is, the wait graph knows (``graph.claims.collectives``): recorders, RAS, cards and stacks all add to it. The
calls are compared here. A rank that is in none is awaited. If all are in calls that cannot be one, that is a ``Difference``, whatever
shows it: recorders name the calls, RAS counts them by kind, stacks name the call and the line, mpi4py's only the line, a card only that a
kernel waits. How long the ranks are given is the graph's to say, or the hang timeout if it does not know.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import msgspec

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import SAME_FOOTPRINT, UNUSED, polls, regime, regimes
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import ends_at, fate_for_others, in_call, outlasts, state_of, wait_graph_of
from perfwatch.triage.graph.model import Prospect
from perfwatch.triage.graph.thresholds import ANSWER_SECONDS
from perfwatch.triage.hang import (
    COMPARE,
    Place,
    hang_between,
    held_up,
    left_over,
    links,
    listed,
    named,
    numbered,
    partners,
    rank_of,
    silent,
    silent_seconds,
    waits_as,
    who,
)
from perfwatch.triage.history import once
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.moving.work import SILENT_BYTES_PER_SECOND
from perfwatch.triage.patience import STRUCTURAL_SECONDS, long_timeout, temporal
from perfwatch.triage.ranks.calls import (
    BEGUN,
    POINT_TO_POINT,
    RECEIVES,
    SENDS,
    between_ranks,
    call_of,
    carried,
    exchange,
    has_arrived,
    leaves,
    makes_group,
    may_join_beside,
    one_sided,
    over,
    travels,
)
from perfwatch.triage.ranks.groups import (
    FEW,
    SHOWN,
    UNHEARD,
    Disagreement,
    Edges,
    Seat,
    Standing,
    WaitGraph,
    counted_apart,
    disagreement,
    exchanging,
    never_called,
    recorder_owes,
    shown,
    unanswered,
    wait_graph,
    why_in_a_ring,
)
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.own_work import mpi_calls
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.libraries import EXCHANGE
from perfwatch.triage.waits.node import Node, culprit
from perfwatch.triage.waits.other_end import ask
from perfwatch.triage.waits.threads import awaited as what_it_awaits
from perfwatch.triage.waits.threads import reduces
from perfwatch.triage.words.code import retries
from perfwatch.triage.words.frames import MPI_COLLECTIVES, collective_name, show, user_frames
from perfwatch.verdict import Abstention, Evidence, Finding, Level, Missing, Outcome, doing
from perfwatch_probes.readings import Communicator, Network, Operation, Process, Stack, Thread

STALLED = Cause("stalled_collective", "hung", "user_code", (Process, Thread, Stack))
MISMATCHED = Cause("mismatched_collective", "hung", "user_code", (Process, Thread, Stack))
WEDGED = Cause("wedged_collective", "hung", "fabric", (Process, Thread, Stack, Network))
NEVER_JOINED = STALLED.line("""
    {late} never joined {op}: {why}; {victims} for it
    - not straggling_rank: no collective has completed since
    - next: perfwatch capture stacks {pid}
""")
UNSEEN = STALLED.line("""
    {late} {why}; {victims} for it
    - next: {advice}
""")
HAS_ENDED = STALLED.line("""
    rank {gone.rank} (pid {gone.pid}) is gone and rank {victim} waits for it in {op}
    - saw process of rank {gone.rank}: is gone | pid {gone.pid} has ended | alive
    - next: dmesg | grep -i 'killed process'
""")
LEFT_BEHIND = STALLED.line("""
    rank {gone.rank} (pid {gone.pid}) is gone and {victims} for it: {place}
    - saw process of rank {gone.rank}: is gone | pid {gone.pid} has ended | alive
    - next: look at what that rank printed last: did it leave a loop earlier than the others?
""")
DIFFER = MISMATCHED.line("{how}[: {told}]")
GARBLED = MISMATCHED.line("""
    the ranks of group {found.group} called operation {found.sequence} with different {found.what}s, and NCCL continued: the results are
    garbage ({parts})
    - not stalled_collective: the ranks continue
    - next: compare the named lines: which condition makes the ranks diverge?
""")
IN_ONE_CALL = WEDGED.line("""
    all {ranks} ranks are in {place}, and no data travels between them[{several:if}; calling their {several} communicators in a different
    order on each rank hangs the same way]
    - not stalled_collective: every rank is in the same call at the same line
    - not mismatched_collective: [{recorded:if}the recorders show the same calls][{counted:if}the calls look the same; only flight
      recorders show their sizes, sends and receives]
    - next: dmesg | grep -iE 'nvlink|mlx5|link|xid'; ss -tni
    - next: [{several:if}start it with perfwatch run: the flight recorder then shows the order of calls on each
      rank][{alone:if}NCCL_DEBUG=INFO and nccl-tests all_reduce_perf between these hosts]
""")
GONE_SECONDS = 2.0  # of a rank of this host that RAS does not hear from, and of which there is no process here
KINDS = ("reduce_scatter", "all_gather", "all_reduce", "broadcast", "reduce", "send", "recv")  # NCCL's
# mpi4py has each collective twice: for buffers, and for objects. A send may wait for its receiver.
MPI_SENDS, MPI_RECEIVES = frozenset({"send", "ssend", "rsend"}), frozenset({"recv", "probe", "mprobe"})
ALL_SEND, ALL_RECEIVE = "every rank sends and none receives", "every rank waits to receive and none sends"


# Stalled: some ranks are in a collective, and the rest stand still somewhere else or have ended


def stalled(case: Case) -> Outcome:
    """Some ranks are in a collective, and the rest stand still somewhere else or have ended."""
    if max(len(case.job.ranks), case.job.world_size or 1) < 2:
        return None
    graph = wait_graph(case)
    waiting = [chain for chain in case.still_chains if in_call(case, chain)]
    gone = _missed(case, graph)
    absent = [chain for chain in case.chains.values() if not in_call(case, chain)]
    absent = [chain for chain in absent if not _is_unread(case, chain)] or absent
    if graph is not None and graph.edges:
        waiting = [chain for chain in case.chains.values() if graph.edges.get(rank_of(chain))] or waiting
    if graph is not None and graph.edges and not gone:
        here = [case.chains[seat.pid] for seat in graph.ends if seat.pid in case.chains]
        if any(in_call(case, chain) for chain in here):
            return None  # behind, and yet in a collective, or in a kernel of its own: counts alone cannot say which
        read = {chain.start.pid for chain in here if not _is_unread(case, chain)}
        unseen = [seat for seat in graph.ends if seat.pid not in read]
        if unseen and not read:
            return _unseen(case, waiting, graph, unseen[0]) if waiting else None
        absent = here
    if not waiting or (not absent and not gone):
        return _left_behind(case, gone)
    if not case.job.covered and (graph is None or not absent):
        lacking = _only_some_are_here(case, "the rank that is missing here may be there")
        return Abstention(cause=STALLED.name, missing=(lacking,))
    at_work = any(leaves(one) or (not over(one) and comes(case, one)) for one in absent)
    lost = _lost(gone, absent, graph, at_work)
    if lost is not None:
        return _ended(case, waiting[0], lost, graph)
    return None if at_work else _stalled(case, waiting, absent, graph)


def _stalled(case: Case, waiting: list[Chain], absent: list[Chain], graph: WaitGraph | None) -> Finding | None:
    first, (op, places) = absent[0], _calls_of(graph, waiting)
    left = left_over(case, first)
    roots = held_up(first.end.node, partners(case, first)) if first.end.kind == "lock" and not left else []
    locked = first.end.kind == "file_lock"  # the rank that has the file's lock, and waits in the collective itself
    holder = next((chain for chain in waiting if locked and chain.start.pid in first.end.others), None)
    states = [state_of(case, chain.start.pid) for chain in waiting]
    needs, stood = max(one.needs_seconds for one in states), min(one.silence.seconds for one in states)
    if needs == inf or all(state_of(case, chain.start.pid).needs_seconds == inf for chain in absent):
        if not outlasts(case, first.end):
            return None  # what they do was not read
        needs = STRUCTURAL_SECONDS  # whatever other threads of that rank do, the end of its chain sleeps on
    if first.end.kind in ("sleep", "file_poll"):  # it asks for one thing since the others wait
        stood = max(stood, silent(waiting))
    late, why = numbered(list(map(rank_of, absent))), _why_absent(case, first, left, roots, holder)
    found = hang_between(
        case,
        NEVER_JOINED,
        [first],
        patience=needs,
        stood=stood,
        # a client of the store that is no rank may set a key
        ceiling=MAY_COME if first.end.kind == "rendezvous" else 1.0,
        evidence=(
            *_of_groups(case, graph),
            *(_waits(case, chain, place.call) for chain, place in list(zip(waiting, places, strict=True))[:3]),
            *unanswered(case),
        ),
        next=ask(first.end),
        **Facts(late=late, op=op, why=why, victims=listed(waiting)),
    )
    ends = (one for chain in (*absent, holder) if chain is not None for one in chain.culprits())
    return msgspec.structs.replace(
        found,
        culprits=tuple(map(culprit, left)) or (*map(culprit, roots), *ends),
        wait_chain=(
            *links(case, waiting, {place.rank: place.call for place in places}),
            *(msgspec.structs.replace(one, depth=one.depth + 1) for one in first.links),
        ),
    )


def comes(case: Case, chain: Chain) -> bool:
    """True if a rank that is elsewhere does something that may end: it works, or a task works for it or looks up now and then.

    Of one that waits for its card the rules about kernels know more.
    """
    if case.progress[chain.start.pid].kind == "moving" or chain.end.kind == "gpu":
        return True
    prospect = fate_for_others(case, chain.start.pid).prospect
    return prospect is Prospect.LIVE or (prospect is Prospect.DUE and ends_at(case, chain.start.pid) is None)


def _is_unread(case: Case, chain: Chain) -> bool:
    """True if it is not known what a rank does: neither its stack nor what it is blocked in."""
    node = chain.end.node
    seen = node.stack is not None or node.wait is not None or case.profile(case.job.members[chain.start.pid]).samples
    return not seen and chain.end.kind not in ("dead", "stopped")


def _why_absent(case: Case, absent: Chain, left: list[Node], roots: list[Node], holder: Chain | None) -> str:
    """What keeps a rank away: a wait, of others too, or that it is done and its process only waits for threads of its own."""
    end = absent.end
    if holder is not None:
        has = f"rank {holder.start.rank}, which waits at {show(holder.start.frame)} itself"
        return f"{who(absent)} {doing(absent.awaited)}: that is {has}"
    if end.kind == "sleep" and end.node.stack is not None and retries(case.history, end.node.stack):
        return f"{who(absent)} keeps retrying with backoff"
    if not over(absent):
        also = "".join(f", and {named(one, absent.end.node.pid)} for {what_it_awaits(one)}" for one in roots[:2])
        return f"{who(absent)} {doing(absent.awaited)}{also}"
    until = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else absent.awaited
    return f"its program has finished, and {who(absent)} waits for {until}"


def _calls_of(graph: WaitGraph | None, waiting: Sequence[Chain]) -> tuple[str, list[Place]]:
    """What ranks wait in, as the recorders name it, or else as the stacks do: of the first of which it is known, and of each."""
    known = graph.calls if graph is not None else {}
    stands = waiting[0].awaited if waiting[0].end.kind == "collective" else "the collective that the others are in"
    op = next((name for chain in waiting if (name := known.get(rank_of(chain)))), stands)
    return op, [Place.of(chain, known.get(rank_of(chain), op)) for chain in waiting]


def _waits(case: Case, chain: Chain, call: str) -> Evidence:
    claim, observed = f"waits {waits_as(case, chain, call)}", f"for {duration(silent([chain]))}"
    return case.saw("collective", f"rank {chain.start.rank}", claim, observed, "returns within a step")


def _of_groups(case: Case, graph: WaitGraph | None) -> tuple[Evidence, ...]:
    return () if graph is None else graph.evidence(case)


def _only_some_are_here(case: Case, why: str) -> Missing:
    """That ranks of the job are on other machines, where they would have to be looked at."""
    reason = f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine"
    return Missing(witness="ranks", reason=reason, advice=f"run perfwatch attach on the other nodes too: {why}")


# Ranks that have ended, or cannot be seen from here


def _missed(case: Case, graph: WaitGraph | None) -> list[Member]:
    """Ranks that have ended and may be waited for, those first that failed; only these where the groups tell who is waited for."""
    gone = [rank for rank in case.job.ranks if not rank.alive]
    gone.sort(key=lambda one: (one.ended is not None and one.ended.exit_code == 0, not _failed(one)))
    if graph is None or not graph.edges or any(seat.rank is None for seat in graph.ends):
        return gone
    targets = {rank for edges in graph.edges.values() for rank in edges}
    return [rank for rank in gone if rank.rank in targets]


def _lost(gone: Sequence[Member], absent: Collection[Chain], graph: WaitGraph | None, at_work: bool) -> Member | None:
    """The rank whose end keeps the others waiting; None where that may be one that lives.

    One that was killed or has failed mostly does. One that came to its end may be in no group that goes on: its work is done, and
    the others wait for one that still evaluates, or stands.

    Args:
        gone: as ``_missed``.
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


def _unseen(case: Case, waiting: list[Chain], graph: WaitGraph, seat: Seat) -> Outcome:
    """The rank at the end is on another machine, may not be looked at, or is gone: only the others' counts tell about it.

    What it does is not known: it may write a checkpoint. So it gets the whole hang timeout.
    """
    gone, (op, places) = seat.state in UNHEARD, _calls_of(graph, waiting)
    patience = STRUCTURAL_SECONDS if gone else temporal(case)
    why = f"never joined {op}: it has made fewer calls than the others, and no count grows"
    why += ", and RAS does not hear from it" if gone else ""
    advice = f"perfwatch attach on {seat.host or 'the node of that rank'}: its own stack says why"
    if gone and not seat.host and seat.pid is None and len(case.ranks) < (case.job.world_size or 0):
        patience = GONE_SECONDS
        why = f"is gone, and never joined {op}: no process of it is here any more, and RAS does not hear from it"
        advice = "that rank has no process any more: check its last output, and the kernel log for the OOM killer"
    elif seat.pid in case.chains:
        advice = f"sudo perfwatch attach {seat.pid}: its own stack says why"
    return hang_between(
        case,
        UNSEEN,
        waiting,
        patience=patience,
        stood=graph.seconds,
        evidence=graph.evidence(case),
        places=places,
        culprits=(Place(seat.rank, seat.pid or 0, "", host=seat.host or None),),
        **Facts(late=seat.name, why=why, victims=listed(waiting), advice=advice),
    )


def _ended(case: Case, waiting: Chain, gone: Member, graph: WaitGraph | None) -> Finding:
    """A rank of this host has ended, and another one waits for it."""
    op, places = _calls_of(graph, [waiting])
    return hang_between(
        case,
        HAS_ENDED,
        [waiting],
        stood=None if graph is None else max(graph.seconds, silent_seconds(case, waiting)),
        evidence=_of_groups(case, graph),
        places=places,
        culprits=(Place(gone.rank, gone.pid, ""),),
        **Facts(gone=gone, op=op, victim=waiting.start.rank),
    )


def _left_behind(case: Case, gone: Sequence[Member]) -> Finding | None:
    """Ranks stay in a collective of MPI after another one has ended; it may be one of a communicator that this one was not in."""
    waiting = [chain for chain in case.still_chains if exchange(case, chain, MPI_COLLECTIVES)]
    line = exchange(case, waiting[0], MPI_COLLECTIVES) if waiting and gone else None
    if line is None:
        return None
    place = line.text.strip()[:80]
    return hang_between(
        case,
        LEFT_BEHIND,
        waiting,
        patience=temporal(case),
        ceiling=Level.HIGH,
        evidence=(),
        places=[Place.of(chain, place) for chain in waiting],
        culprits=(Place(gone[0].rank, gone[0].pid, ""),),
        **Facts(gone=gone[0], victims=listed(waiting), place=place),
    )


# Mismatched: every rank is in a call, and these cannot be one


@dataclass(frozen=True)
class Difference:
    """Calls of ranks that cannot be one call, and what shows that.

    ``needs_seconds``: of silence, before it is a hang; None: what the graph says, or the hang timeout if it does not know.
    """

    how: str
    chains: Sequence[Chain]  # the first one shows that nothing moves
    # In which call, and at which line, ranks are; those that differ from most first. Without calls: told in ``how``.
    places: Sequence[Place]
    evidence: tuple[Evidence, ...]
    needs_seconds: float | None = None
    stood: float | None = None
    ceiling: float = 1.0
    culprits: Sequence[Place] | None = None  # where these are not all places
    awaits: Edges = field(default_factory=dict)  # by rank, those that have not joined it
    unless: str = ""
    refuted: Mapping[str, str] = field(default_factory=lambda: {STALLED.name: "every rank is in a collective"})
    advice: tuple[str, ...] = (COMPARE,)

    @property
    def told(self) -> str:
        """``rank 1 is in send 1->2 at f (x.py:3); ranks 0, 2 are in all_reduce 6``; those alike are named once."""
        alike: dict[str, list[int | str]] = {}
        for place in self.places:
            late = self.awaits.get(-1 if place.rank is None else place.rank, ())
            joined = f", which {numbered(late)} {'has' if len(late) == 1 else 'have'} not joined" if late else ""
            alike.setdefault(f"{place}{joined}", []).append("?" if place.rank is None else place.rank)
        parts = [f"{numbered(ranks)} {'is' if len(ranks) == 1 else 'are'} in {said}" for said, ranks in alike.items()]
        return "; ".join(parts[:SHOWN])


def mismatched(case: Case) -> Outcome:
    """All ranks are in different calls, or were recorded in different ones. What shows it most directly comes first."""
    recorded = disagreement(case)
    # what stands past it stands for another reason, which the rules about hangs know better
    past = recorded is not None and recorded.over and any(one.kind == "still" for one in case.progress.values())
    if recorded is not None and not past and (recorded.over or case.moving):
        return _garbled(case, recorded)
    found = (
        (_recorded(case, recorded) if recorded is not None and not past else None)
        or _in_a_ring(case)
        or _leaving(case)
        or _crossed(case)
        or _delivered(case)
        or _in_exchanges(case)
        or _behind_cards(case)
        or _by_stacks(case)
    )
    if found is None or not found.chains:
        return None
    needs = _needs_seconds(case, found.chains) if found.needs_seconds is None else found.needs_seconds
    return hang_between(
        case,
        replace(DIFFER, but=tuple(found.refuted.items())),
        found.chains,
        patience=needs,
        stood=found.stood,
        ceiling=found.ceiling,
        evidence=found.evidence,
        places=found.places,
        culprits=found.culprits,
        next=found.advice,
        **Facts(how=found.how, told=found.told + found.unless if any(one.call for one in found.places) else None),
    )


def _needs_seconds(case: Case, chains: Sequence[Chain]) -> float:
    """How much silence the graph wants of ranks that wait for each other; the hang timeout where it does not know."""
    needs = max(state_of(case, chain.start.pid).needs_seconds for chain in chains)
    return needs if 0.0 < needs < inf else temporal(case)


def _parted(found: Disagreement) -> tuple[list[Place], list[Place]]:
    """Where the ranks are that mean different things by one number, the odd ones first; and those to blame, if it is not open which."""
    alike = Counter(_meant(one) for _, _, one in found.calls)
    calls = sorted(found.calls, key=lambda call: alike[_meant(call[2])])
    places = [Place(rank, pid, shown(one), show(next(iter(one.frames), None))) for rank, pid, one in calls]
    odd = [place for place, call in zip(places, calls, strict=True) if alike[_meant(call[2])] == min(alike.values())]
    return places, odd if 2 * min(alike.values()) < len(calls) else places


def _meant(one: Operation) -> tuple[str, str, int]:
    return one.name, one.dtypes, one.input_elements


def _of_recorders(case: Case, found: Disagreement) -> tuple[Evidence, ...]:
    claim, same = f"calls as operation {found.sequence} of group {found.group}", "the same in every rank"
    return tuple(
        case.saw("flight_recorder", f"rank {rank}", claim, f"{shown(one)} ({one.state})", same, found.at)
        for rank, _, one in found.calls[:SHOWN]
    )


def _garbled(case: Case, found: Disagreement) -> Finding:
    """The calls of one number differed, and training went on: the data was mixed up."""
    places, culprits = _parted(found)
    parts = "; ".join(f"rank {place.rank}: {place}" for place in places[:SHOWN])
    blamed, shown = tuple(place.culprit for place in culprits), _of_recorders(case, found)
    told = GARBLED.finding(case, blamed, Level.CERTAIN, more=shown, found=found, parts=parts)
    return msgspec.structs.replace(told, state="slow", lost_share=1.0)


def _recorded(case: Case, found: Disagreement) -> Difference:
    """The flight recorders show one sequence number that means different calls."""
    places, culprits = _parted(found)
    ranks = {place.rank for place in places}
    chains = sorted((one for one in case.chains.values() if one.start.rank in ranks), key=lambda one: silent([one]))
    how = f"the ranks of group {found.group} use different {found.what}s for operation {found.sequence}"
    return Difference(how, chains, places, _of_recorders(case, found), culprits=culprits)


def _in_a_ring(case: Case) -> Difference | None:
    """Ranks wait for each other, each in another group.

    NCCL counts who is behind in its groups; gloo's groups it does not know. So a rank that the others wait for is behind, and yet may be
    in a call itself: its stack names one that the others do not wait in, or gloo carries one out while its card idles, or its card holds
    a kernel that only polls while another group of the same ranks is level. What it waits for are the ranks that wait for it.
    """
    graph = wait_graph(case)
    late = _in_other_groups(case, graph) if graph is not None and graph.ends else {}
    ring = (*late, *graph.edges) if graph is not None and late else graph.cycle if graph is not None else ()
    known = {rank_of(chain): chain for chain in case.chains.values()}
    chains = [known[rank] for rank in ring if rank in known]
    if graph is None:
        return None
    places = [late.get(rank) or _waits_at(graph, rank, known.get(rank)) for rank in ring]
    awaits = {**graph.edges, **dict.fromkeys(late, tuple(graph.edges))}
    evidence = graph.evidence(case)
    if not late:
        how = f"the ranks wait for each other in a ring, for {why_in_a_ring([place.call for place in places])}"
        stood = max(graph.seconds, silent(chains) if graph.recorded else 0.0)
        refuted = {STALLED.name: "the ranks wait in a cycle: no rank is at its end"}
        return (
            Difference(how, chains, places, evidence, STRUCTURAL_SECONDS, stood, awaits=awaits, refuted=refuted)
            if ring
            else None
        )
    # else a kernel that never ends looks the same
    sure = all(known[rank].end.kind == "collective" for rank in late)
    unless = (
        "not ruled out: a kernel of the program that never ends looks the same; the flight recorders show which it is"
    )
    return Difference(
        "the ranks wait for each other in calls of different groups",
        chains,
        places,
        (*evidence, *(_in_call(case, known[rank], f"is in {place.call}") for rank, place in [*late.items()][:SHOWN])),
        STRUCTURAL_SECONDS,
        min(graph.seconds, silent(chains)),
        1.0 if sure else Level.HIGH,
        culprits=places[:SHOWN],
        awaits=awaits,
        refuted={
            STALLED.name: "the rank that is behind is in a call itself",
            "stuck_kernel": "a stack names the call" if sure else unless,
        },
    )


def _waits_at(graph: WaitGraph, rank: int, chain: Chain | None) -> Place:
    """The call in which a rank waits for others: where the recorder saw it called, or else where the rank stands."""
    line = show(graph.frames.get(rank)) or (Place.of(chain).line if chain is not None else None)
    return Place(rank, graph.seats[rank].pid or 0, graph.calls.get(rank) or "a collective", line)


def _in_other_groups(case: Case, graph: WaitGraph) -> dict[int, Place]:
    """By rank, where those are that all others wait for; empty if one of them is in no call of another group, or data travels."""
    waiting = [chain for chain in case.chains.values() if graph.edges.get(rank_of(chain))]
    ends = [chain for seat in graph.ends if (chain := case.chains.get(seat.pid or 0)) is not None]
    late = {rank_of(one): Place.of(one, call) for one in ends if (call := _instead(case, graph, one, waiting))}
    all_are = case.job.covered and len(late) == len(graph.ends) and len(waiting) + len(late) >= len(case.ranks)
    stand = waiting and all(in_call(case, chain) for chain in waiting) and _nothing_travels(case)
    return late if all_are and stand else {}


def _instead(case: Case, graph: WaitGraph, chain: Chain, waiting: list[Chain]) -> str:
    """What a rank that others wait for is in instead; empty where that is not a call of another group."""
    history, pid, end = case.history, chain.start.pid, chain.end
    if end.kind == "collective" and end.still and end.node.stack is not None:
        name = collective_name(end.node.stack) or ""
        others = {_kind(graph.calls.get(rank_of(one), "")) for one in waiting}
        if _kind(name) not in others | {""}:
            return name
        # Of the same kind: perhaps the very call, not counted yet, where it is not gloo's. One of NCCL's would hold a kernel.
        idle = {card.kind for card in regimes(history, pid)} == {"idle"}
        return f"{name} over gloo" if _kind(name) and idle and reduces(history, pid) else ""
    if end.kind != "gpu" or not end.detail or not in_sync(history, end.node.stack):
        return ""
    card, known = regime(history, end.detail), cards_of(history, pid).certain
    level = [one.seats for one in graph.standings if not one.behind and not one.lost]  # called equally often by all
    groups = [{seat.rank for seat in seats} for seats in level if all(seat.reached for seat in seats)]
    beside = any(rank_of(chain) in one and not one.isdisjoint(map(rank_of, waiting)) for one in groups)
    polls_there = beside and known and card.polls and not card.computes
    return f"probably a call of another group, by its GPU ({card.shown()})" if polls_there else ""


def _kind(name: str) -> str:
    """The kind of call by NCCL's names (its barrier is an all_reduce); empty for one that is none of them."""
    return "all_reduce" if "barrier" in name else next((kind for kind in KINDS if kind in name), "")


def _crossed(case: Case) -> Difference | None:
    """RAS counts the members of a group in different calls, unchanged.

    Members of a group must make the same calls in the same order, so counts that have crossed are wrong by themselves.
    """
    found = counted_apart(case)
    if found is None:
        return None
    alike = Counter(seat.launched for seat in found.seats)
    seats = sorted(found.seats, key=lambda seat: alike[seat.launched])  # the odd ones first
    known = {chain.start.rank: chain for chain in case.chains.values() if chain.start.rank is not None}
    lines: dict[int | None, str | None] = {rank: Place.of(chain).line for rank, chain in known.items()}
    places = [Place(seat.rank, seat.pid or 0, _ahead_in(found, seat), lines.get(seat.rank)) for seat in seats]
    return Difference(
        f"the ranks have made different calls ({_counted(found)}), and wait for each other",
        sorted(known.values(), key=lambda chain: chain.start.rank != seats[0].rank),
        places,
        _of_counts(case, found),
        STRUCTURAL_SECONDS,
        found.seconds,
        culprits=places[:SHOWN],
        refuted={STALLED.name: "each is ahead of the others in one kind of call"},
    )


def _counted(found: Standing) -> str:
    """``rank 3: 42 all_reduce, 1 all_gather; ranks 0, 1, 2: 43 all_reduce``; the rarest counts first."""
    ranks: dict[tuple[tuple[str, int], ...], list[int | str]] = {}
    for seat in found.seats:
        ranks.setdefault(seat.launched, []).append("?" if seat.rank is None else seat.rank)
    return "; ".join(
        f"{numbered(those)}: {', '.join(f'{count} {kind}' for kind, count in launched) or 'none'}"
        for launched, those in sorted(ranks.items(), key=lambda one: len(one[1]))[:SHOWN]
    )


def _of_counts(case: Case, found: Standing) -> tuple[Evidence, ...]:
    claim = "its ranks have called different collectives, and none advances"
    told, same = f"{_counted(found)}, {found.unchanged(case.at)}", "the same calls in every rank"
    return (case.saw("nccl_ras", f"group {found.group}", claim, told, same, found.at),)


def _ahead_in(found: Standing, seat: Seat) -> str:
    """The kind of call in which a rank is ahead of others, which it waits in."""
    for kind, count in seat.launched:
        counts = [dict(one.launched).get(kind, 0) for one in found.seats]
        if count == max(counts) > min(counts):
            return kind
    return "another call"


def _leaving(case: Case) -> Difference | None:
    """Some ranks end their process group, the others wait in one more call: all stand still, and none is anywhere else."""
    leaving = [chain for chain in case.still_chains if leaves(chain)]
    still = {chain.start.pid for chain in case.still_chains}
    waiting = [
        chain
        for pid, chain in case.chains.items()
        if not leaves(chain) and (pid in still or (chain.start.motion.distinct <= 1 and polls(case.history, pid)))
    ]
    if not leaving or not waiting or not case.job.covered or len(leaving) + len(waiting) < len(case.ranks):
        return None
    if any(chain.end.kind not in ("collective", "gpu", "native") for chain in waiting):
        return None  # where no GPU can be asked, a wait for it is seen as a native call that does not return
    crossed = counted_apart(case)
    if crossed is not None:  # what the rank that has called most waits in is what the others never call
        reached = {seat.pid: seat.reached for seat in crossed.seats}
        waiting.sort(key=lambda chain: -reached.get(chain.start.pid, 0))
    where = ", ".join(f"rank {rank_of(chain)} at {show(chain.start.frame)}" for chain in leaving[:FEW])
    leave = f"{where} {'destroys its' if len(leaving) == 1 else 'destroy their'} process group"
    calls = "one more" if crossed is None else f"different calls ({_counted(crossed)})"
    own, polling = carried(case, WINDOW_SECONDS), [polls(case.history, chain.start.pid) for chain in waiting]
    seen = all(one or in_call(case, chain) for one, chain in zip(polling, waiting, strict=True))
    may_talk = sum(polling) > 1 and (own is None or not own.silent)  # in a slow collective among themselves
    first = [*leaving, *waiting] if crossed is None else [*waiting, *leaving]
    return Difference(
        f"the ranks have made unequal numbers of calls: {leave}, while {listed(waiting)} in {calls}, "
        f"at {show(waiting[0].start.frame)}",
        [*leaving, *waiting],
        list(map(Place.of, waiting)),
        (
            *(_in_call(case, one, "destroys its process group") for one in leaving[:2]),
            *(_in_call(case, one, f"waits {waits_as(case, one)}") for one in waiting[:2]),
            *(_of_counts(case, crossed) if crossed is not None else ()),
        ),
        STRUCTURAL_SECONDS if seen and not may_talk else temporal(case),
        silent([*leaving, *waiting]),
        culprits=list(map(Place.of, first)),
        refuted={"hung_at_exit": "training is not over in every rank"},
        advice=("compare how many batches each rank gets: which has fewer, or leaves its loop earlier?",),
    )


def _in_exchanges(case: Case) -> Difference | None:
    """All ranks are in exchanges of mpi4py that cannot meet: all send, all receive, or they differ.

    Only where steps were counted and none comes any more: without a count, many short exchanges look the same.
    """
    chains = [case.chains[rank.pid] for rank in case.ranks]
    clocks = [case.progress[rank.pid].steps for rank in case.ranks]
    if any(one is None or not one.late for one in clocks) or not case.job.covered or len(chains) < len(case.job.ranks):
        return None
    lines = [exchange(case, chain) for chain in chains if chain.end.node.motion.distinct <= 1]
    known = [line for line in lines if line is not None]
    how = _cannot_meet([frozenset(name.lower() for name in mpi_calls(line, case.job)) for line in known])
    if not known or len(known) < len(chains) or how is None:
        return None
    stood = min(one.ago_seconds or 0.0 for one in clocks if one is not None)
    places = [
        Place(chain.start.rank, chain.start.pid, line.text.strip()[:80], show(chain.end.node.frame))
        for chain, line in zip(chains, known, strict=True)
    ]
    return Difference(
        how,
        chains,
        places,
        tuple(
            case.saw("collective", f"rank {one.rank}", f"is in {one}", f"no step for {duration(stood)}", "returns")
            for one in places[:FEW]
        ),
        temporal(case),
        stood,
        Level.HIGH,
        refuted={STALLED.name: "every rank is in an exchange"},
        advice=("Sendrecv, or Isend before Recv: a Send may wait for its receiver" if how is ALL_SEND else COMPARE,),
    )


def _cannot_meet(calls: Sequence[frozenset[str]]) -> str | None:
    if all(names <= MPI_SENDS for names in calls):
        return ALL_SEND
    if all(names <= MPI_RECEIVES for names in calls):
        return ALL_RECEIVE
    collectives = {name.lower() for name in MPI_COLLECTIVES}
    differ = len(set(calls)) > 1 and any(names <= collectives for names in calls)
    return "the ranks wait for each other in different exchanges" if differ else None


def _behind_cards(case: Case) -> Difference | None:
    """Every rank waits for its card, whose kernel only polls, and they are at different lines; nothing travels between them.

    Sends and receives that wait for each other look so where no flight recorder can be asked: NCCL does not count them. For which call
    each rank waits is not seen, so it gets the whole hang timeout, and is never called sure. Where the counts say that some have called a
    collective to which the others have not come, and stand, these do not come: their cards wait as well, and for no rank that computes.
    """
    chains, places = tuple(case.chains.values()), _places(case.chains.values())
    if len({place.line for place in places}) < 2 or len(chains) < len(case.ranks) or not case.job.covered:
        return None
    if any(one.end.kind not in ("gpu", "collective") or not polls(case.history, one.start.pid) for one in chains):
        return None
    graph = wait_graph(case)
    if not _nothing_travels(case):
        return None
    cards = [card for chain in chains[:FEW] for card in regimes(case.history, chain.start.pid)[:1]]
    evidence: tuple[Evidence, ...] = tuple(
        case.saw("gpm", name_of(case.history, one.uuid), "a kernel only polls", one.shown(), "data moves")
        for one in cards
    )
    patience, stood, unless = temporal(case), silent(chains), ""
    if graph is not None and graph.edges and len(graph.edges) + len(graph.ends) >= len(chains):
        if {seat.pid for seat in graph.ends} <= case.chains.keys():  # each waits in a collective, or is waited for
            late = ", ".join(seat.name for seat in graph.ends[:FEW])
            called = min(graph.calls.values(), default="a collective")
            unless = f"; {late} has not joined {called}: it is in a send or receive, which NCCL does not count, or in no call"
            patience, stood = STRUCTURAL_SECONDS, min(stood, graph.seconds)
            evidence = (*graph.evidence(case), *evidence)
    return Difference(
        "every rank waits for its card, whose kernel only polls, and no data travels between them",
        chains,
        places,
        evidence,
        patience,
        stood,
        Level.MEDIUM,  # a kernel of the program's own in one rank, or a wedge behind two lines, look the same
        unless=unless,
        refuted={WEDGED.name: "the ranks are at different lines"},
        advice=("next time start it with perfwatch run: its flight recorder shows which call each rank is in",),
    )


def _places(chains: Collection[Chain]) -> list[Place]:
    """Where each rank stands; where all stand in the same helper, the innermost of its callers that are not the same.

    The thread that waits for the card tells, if it runs Python: of torch's engine the one that asked it.
    """
    standing = [chain.end.node if chain.end.node.frame is not None else chain.start for chain in chains]
    written = [user_frames(node.stack) if node.stack is not None else () for node in standing]
    differ = (frames for frames in zip(*written, strict=False) if len(set(frames)) > 1)
    frames = next(differ, [node.frame for node in standing])
    starts = [chain.start for chain in chains]
    return [Place(one.rank, one.pid, "a call", show(frame)) for one, frame in zip(starts, frames, strict=True)]


def _by_stacks(case: Case) -> Difference | None:
    """All ranks are in different calls by their stacks, or in the same one from different lines."""
    chains = case.still_chains
    if len(chains) < 2 or len(chains) < len(case.ranks) or not case.job.covered:
        return None
    if any(one.end.node.stack is None or not (one.end.kind == "collective" or makes_group(one)) for one in chains):
        return None
    places: dict[tuple[str, str | None], list[Chain]] = {}  # by call and line
    for chain in chains:
        places.setdefault((call_of(chain), show(chain.end.node.frame)), []).append(chain)
    names, moves = {name for name, _ in places}, travels(case)
    if moves or (len(places) == 1 and not one_sided(names)):
        return None  # or one call's data is still on its way; a rank that has got all of it may be in the next one
    with_cards = any(cards_of(case.history, rank.pid).uuids for rank in case.ranks)  # NVLink has no sockets
    if names <= POINT_TO_POINT and not one_sided(names) and (moves is None or with_cards):
        return None  # some send and others receive: stages of a pipeline differ by design
    exchanges = bool(names & POINT_TO_POINT)
    beside = [rank_of(chain) for chain in chains if may_join_beside(case, chain.end.node)]
    parted = [one for there in sorted(places.values(), key=len) for one in there]  # what differs from most comes first
    return Difference(
        _at_odds(names),
        parted,
        [Place(one.start.rank, one.start.pid, call_of(one), show(one.end.node.frame)) for one in parted],
        tuple(_in_call(case, one, f"waits in {call_of(one)}") for one in parted),
        None if not beside else long_timeout(case) if exchanges else temporal(case),
        silent(chains),
        Level.MEDIUM if beside else Level.HIGH if exchanges or len(names) == 1 else 1.0,
        unless=f", unless another thread of {numbered(beside)} answers them" if beside else "",
    )


def _at_odds(calls: set[str]) -> str:
    """What ranks in these calls do, in words."""
    if calls == {BEGUN}:
        return "every rank waits for a send or receive that it started, and no rank has made the matching call"
    if calls <= RECEIVES:
        return ALL_RECEIVE
    if calls <= SENDS:
        return ALL_SEND
    return f"the ranks wait for each other in different {'calls' if calls & POINT_TO_POINT else 'collectives'}"


def _in_call(case: Case, chain: Chain, claim: str) -> Evidence:
    observed = f"{Place.of(chain).line} for {duration(silent([chain]))}"
    return case.saw("collective", f"rank {rank_of(chain)}", claim, observed, "all ranks in the same call")


def _nothing_travels(case: Case) -> bool:
    """True if it is known that nothing travels between the ranks: large objects take their time over gloo's connections."""
    moved = between_ranks(case)
    return moved is not None and moved <= SILENT_BYTES_PER_SECOND


# Wedged: every rank is in one and the same call


@dataclass(frozen=True)
class SameCall:
    """Ranks that are in one call that does not end, and that nothing travels for."""

    chains: tuple[Chain, ...]
    recorded: bool  # the flight recorders say so
    counted: bool  # recorders or RAS have counted their calls
    on_cards: bool  # the collective runs on GPUs
    delivered: bool  # it runs over connections on which nothing is under way, so that no network holds it up
    silent_seconds: float
    place: str  # the call, as the recorders or the stacks name it, and the line
    evidence: tuple[Evidence, ...]


@once
def same_call(case: Case) -> SameCall | Missing | None:
    """All ranks in one call that does not end; ``Missing`` where one more source would have to be read."""
    if wait_graph_of(case).calls.hidden:
        return None
    graph = wait_graph(case)
    stands = graph is not None and graph.seconds >= STRUCTURAL_SECONDS
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid)]
    computes = any(card.units > UNUSED for card in cards)  # a call that is not over may only wait for its turn
    recorded = graph is not None and graph.together and stands and not computes
    counted = graph is not None and graph.level and stands and all(polls(case.history, one.pid) for one in case.ranks)
    known = recorded or counted
    chains = tuple(case.chains.values()) if known else case.still_chains
    if len(chains) < 2 or len(chains) < len(case.ranks):
        return None
    if not known and not all(in_call(case, chain) for chain in chains):
        return None
    sends = any(chain.end.detail == EXCHANGE or call_of(chain) in POINT_TO_POINT for chain in chains)
    if sends or exchanging(case) or (not recorded and never_called(case)):
        return None  # in sends and receives, which are no call that all are in, and which RAS does not count
    if not case.job.covered:
        return _only_some_are_here(case, "a rank there may be elsewhere")
    levels = [card.sm_active for card in cards if card.sm_active is not None]
    if max(levels, default=0.0) - min(levels, default=0.0) > SAME_FOOTPRINT:
        return (
            None  # a card that does not look like the others is in another kernel, before or instead of the collective
        )
    at_one_line = len({show(chain.start.frame) for chain in chains}) == 1 and all(chain.start.stack for chain in chains)
    if (graph is not None and graph.edges) or not (recorded or at_one_line):
        return None
    own, moved = carried(case, WINDOW_SECONDS), between_ranks(case)
    if moved is None:
        return case.lacks("network") or Missing(witness="network", reason="the interfaces were not read twice")
    if moved > SILENT_BYTES_PER_SECOND:
        return None
    ports = (case.history.latest(Network, *key) for key in case.history.entities(Network))
    # The collective may run over them instead.
    rdma = any(port is not None and port.reading.kind == "rdma" for port in ports)
    on_cards = known or all(chain.end.kind == "gpu" for chain in chains)
    stood = min(chain.end.silent_seconds or 0.0 for chain in chains)
    call = next(iter(graph.calls.values()), "") if graph is not None else ""
    call = call or ("the same collective" if on_cards else chains[0].awaited)
    entity = "host" if own is None else "the ranks' connections"
    seen = f"{moved / 1024:.1f} KiB/s" if own is None else own.shown()
    nothing = case.saw("network", entity, "nothing travels", seen, "gradients travel in each step")
    return SameCall(
        chains,
        recorded,
        graph is not None,
        on_cards,
        # NCCL's data may go elsewhere, so they must have carried some; gloo has nothing else. Recorders tell the size.
        has_arrived(own, on_cards) and not recorded and not rdma,
        stood if graph is None else max(stood, graph.seconds),
        f"{call} at {show(chains[0].start.frame or chains[0].end.node.frame)}",
        (*_of_groups(case, graph), nothing),
    )


def _delivered(case: Case) -> Difference | None:
    """All ranks are in one call over sockets, all that was sent has arrived, and none advances: they mean different things by it.

    NCCL does not compare sizes. Over NVLink ranks that disagree may go on with garbage; over a network the one that expects more
    waits for bytes that no rank will send (measured: four ranks over sockets, a gradient of one more column in rank 1). gloo fails
    there; of its calls that wait for each other those of different groups are left (three pairs in a ring, through one helper).
    """
    found = same_call(case)
    if not isinstance(found, SameCall) or not found.delivered:
        return None
    why, unlike = "their calls are not of the same group", "the group and the order of calls in each rank"
    arm: tuple[str, ...] = ()
    if found.on_cards:
        why, unlike = (
            "their tensors differ in size or type",
            "the tensor's shape and dtype in each rank before this call",
        )
        arm = ("perfwatch run -- ...   # arms the flight recorder, which shows the sizes",)
    return Difference(
        f"all {len(found.chains)} ranks are in {found.place}, and all that they sent has arrived: {why}",
        found.chains,
        (),
        found.evidence,
        STRUCTURAL_SECONDS,
        found.silent_seconds,
        Level.MEDIUM,  # by exclusion: the sizes themselves only the recorders tell
        culprits=(),
        refuted={
            WEDGED.name: "all data sent over the connections is acknowledged; NVLink traffic is not visible",
            STALLED.name: "every rank is in the same call at the same line",
        },
        advice=(f"compare {unlike}", *arm),
    )


def wedged(case: Case) -> Outcome:
    """All ranks are in one and the same collective, and nothing travels."""
    seen = same_call(case)
    if isinstance(seen, Missing):
        return Abstention(cause=WEDGED.name, missing=(seen,))
    if seen is None or seen.delivered:
        return None  # what the network was given it has delivered
    # NVLink delivers or does not; what goes over a network is sent again for a while, and a link may come back.
    patience = STRUCTURAL_SECONDS if seen.on_cards and seen.counted else temporal(case)
    if seen.on_cards and not seen.recorded and recorder_owes(case):
        patience += ANSWER_SECONDS
    several = 0 if seen.recorded else _groups(case, len(seen.chains))
    several = several if several > 1 else 0
    # RAS counts calls. That all mean the same size, and make the calls of several groups in one order, only the recorders tell.
    ceiling = 1.0 if seen.recorded else Level.MEDIUM if several else Level.HIGH
    return hang_between(
        case,
        IN_ONE_CALL,
        seen.chains,
        patience=patience,
        stood=seen.silent_seconds,
        ceiling=ceiling,
        evidence=seen.evidence,
        places=[Place.of(chain) for chain in seen.chains],
        culprits=(),
        **Facts(ranks=len(seen.chains), place=seen.place, several=several, alone=not several),
        **Facts(recorded=seen.recorded, counted=not seen.recorded),
    )


def _groups(case: Case, ranks: int) -> int:
    """How many communicators of all the ranks were used, by RAS."""
    answers = (case.history.latest(Communicator, *key) for key in case.history.entities(Communicator))
    whole = (one.reading.members for one in answers if one is not None and one.reading.size == ranks)
    return sum(bool(members) and all(any(one.launched.values()) for one in members) for members in whole)


RULES = (Rule(STALLED, stalled), Rule(MISMATCHED, mismatched), Rule(WEDGED, wedged))
