"""Every rank is in a call, and these do not belong together: each way in which that shows, from the most direct to the least.

The flight recorders name the calls. RAS counts them by kind. Stacks name the call and the line, mpi4py's only the line. A card shows that a
kernel waits, and connections show that nothing is on its way.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import POLLING_UNITS, Regime, polls, regime, regimes
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.from_case import in_call
from perfwatch.triage.graph.thresholds import COUNTS_TIMES
from perfwatch.triage.hang import COMPARE, Place, hang_between, listed, numbered, rank_of, silent, waits_as
from perfwatch.triage.moving.flows import SILENT_BYTES_PER_SECOND, Flow
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks.calls import (
    BEGUN,
    POINT_TO_POINT,
    RECEIVES,
    SENDS,
    call_of,
    exchange,
    leaves,
    makes_group,
    may_join_beside,
    one_sided,
)
from perfwatch.triage.ranks.groups import (
    FEW,
    SHOWN,
    Seat,
    Standing,
    WaitGraph,
    counted_apart,
    disagreement,
    exchanging,
    never_called,
    once_per_case,
    shown,
    wait_graph,
    why_in_a_ring,
)
from perfwatch.triage.ranks.traffic import between_ranks, carried, has_arrived, travels
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.own_work import mpi_calls
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.libraries import EXCHANGE
from perfwatch.triage.waits.native_waits import reduces
from perfwatch.triage.words.frames import collective_name, show, user_frames
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES
from perfwatch.verdict import Alternative, Evidence, Finding, Level, Missing, Outcome
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Operation, Process, Stack, Thread

SAME_FOOTPRINT = 0.02  # of the multiprocessors: ranks inside one collective are as alike (measured 0.182 and 0.182)
MISMATCHED = Cause("mismatched_collective", "hung", "user_code", (Process, Thread, Stack))
KINDS = ("reduce_scatter", "all_gather", "all_reduce", "broadcast", "reduce", "send", "recv")  # NCCL's
# mpi4py has each collective twice: for buffers, and for objects. A send may wait for its receiver.
MPI_SENDS, MPI_RECEIVES = frozenset({"send", "ssend", "rsend"}), frozenset({"recv", "probe", "mprobe"})
ALL_SEND, ALL_RECEIVE = "every rank sends and none receives", "every rank waits to receive and none sends"
WEDGE, STALL = "wedged_collective", "stalled_collective"
IN_A_CALL = {STALL: "every rank is in a collective"}


# One and the same call


@dataclass(frozen=True)
class SameCall:
    """Ranks that are in one call. ``recorded``: the flight recorders say so; ``counted``: RAS does; else only the stacks."""

    chains: tuple[Chain, ...]
    graph: WaitGraph | None
    recorded: bool
    counted: bool
    flow: Flow | None  # over the ranks' own connections; None where these could not be read
    bytes_per_second: float
    rdma: bool  # there are RDMA ports, over which the collective may run instead

    @property
    def on_cards(self) -> bool:
        """True if the collective runs on GPUs."""
        return self.recorded or self.counted or all(chain.end.kind == "gpu" for chain in self.chains)

    @property
    def delivered(self) -> bool:
        """True if the collective runs over connections on which nothing is under way, so that no network holds it up.

        NCCL's data may go elsewhere, so they must have carried some; gloo has nothing else. Where the recorders show one call in
        every rank, its size is the same.
        """
        return has_arrived(self.flow, self.on_cards) and not self.recorded and not self.rdma

    @property
    def silent_seconds(self) -> float:
        """For how long no rank has gone on."""
        silent = min(chain.end.silent_seconds or 0.0 for chain in self.chains)
        return silent if self.graph is None else max(silent, self.graph.seconds)

    @property
    def place(self) -> str:
        """The call, as the recorders or the stacks name it, and the line."""
        named = next(iter(self.graph.calls.values()), "") if self.graph is not None else ""
        first = self.chains[0]
        call = named or ("the same collective" if self.on_cards else first.awaited)
        return f"{call} at {show(first.start.frame or first.end.node.frame)}"

    def evidence(self, case: Case) -> tuple[Evidence, ...]:
        """What the counts or the recorders show, and what the network does."""
        nothing = case.saw(
            "network",
            "host" if self.flow is None else "the ranks' connections",
            "nothing travels",
            f"{self.bytes_per_second / 1024:.1f} KiB/s" if self.flow is None else self.flow.shown(),
            "gradients travel in each step",
        )
        return (*(self.graph.evidence(case) if self.graph is not None else ()), nothing)


@once_per_case
def same_call(case: Case) -> SameCall | Missing | None:
    """All ranks in one call that does not end; ``Missing`` where one more source would have to be read."""
    graph = wait_graph(case)
    stands = graph is not None and graph.seconds >= STRUCTURAL_SECONDS
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid)]
    computes = any(card.units > POLLING_UNITS for card in cards)  # a call that is not over may only wait for its turn
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
        return only_some_are_here(case, "a rank there may be elsewhere")
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
    ports = (case.history.latest(r.Network, *key) for key in case.history.entities(r.Network))
    rdma = any(port is not None and port.reading.kind == "rdma" for port in ports)
    return SameCall(chains, graph, recorded, counted, own, moved, rdma)


def only_some_are_here(case: Case, why: str) -> Missing:
    """That ranks of the job are on other machines, where they would have to be looked at."""
    reason = f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine"
    return Missing(witness="ranks", reason=reason, advice=f"run perfwatch attach on the other nodes too: {why}")


def stands_out(card: Regime, cards: Sequence[Regime]) -> bool:
    """True if a card differs from the one in the middle of all of them."""
    levels = sorted(one.sm_active or 0.0 for one in cards)
    return abs((card.sm_active or 0.0) - levels[len(levels) // 2]) > SAME_FOOTPRINT


# What recorders and counts show


def by_records(case: Case) -> Outcome:
    """The flight recorders show one sequence number that means different calls: a hang, or mixed-up data where training went on."""
    found = disagreement(case)
    if found is None or (found.over and any(one.kind == "still" for one in case.progress.values())):
        return None  # what stands past it stands for another reason, which the rules about hangs know better
    alike = Counter(_meant(one) for _, _, one in found.calls)
    calls = sorted(found.calls, key=lambda call: alike[_meant(call[2])])  # the odd ones first
    places = [Place(rank, pid, shown(one), show(next(iter(one.frames), None))) for rank, pid, one in calls]
    odd = [place for place, call in zip(places, calls, strict=True) if alike[_meant(call[2])] == min(alike.values())]
    culprits = odd if 2 * min(alike.values()) < len(calls) else places
    parts = "; ".join(f"rank {place.rank}: {place}" for place in places[:SHOWN])
    claim, same = f"calls as operation {found.sequence} of group {found.group}", "the same in every rank"
    evidence = tuple(
        case.saw("flight_recorder", f"rank {rank}", claim, f"{shown(one)} ({one.state})", same, found.at)
        for rank, _, one in found.calls[:SHOWN]
    )
    if found.over or case.moving:
        return Finding(
            cause=MISMATCHED.name,
            state="slow",
            summary=f"the ranks of group {found.group} called operation {found.sequence} with different {found.what}s, and "
            f"NCCL went on: what they got is garbage ({parts})",
            confidence=Level.CERTAIN,
            owner=MISMATCHED.owner,
            culprits=tuple(place.culprit for place in culprits),
            evidence=evidence,
            alternatives=(Alternative(cause=STALL, refuted_by="the ranks go on"),),
            next=(COMPARE,),
            lost_share=1.0,
        )
    ranks = {place.rank for place in places}
    chains = sorted((one for one in case.chains.values() if one.start.rank in ranks), key=lambda one: silent([one]))
    if not chains:
        return None
    return hang_between(
        case,
        MISMATCHED,
        chains,
        f"the ranks of group {found.group} mean different {found.what}s by operation {found.sequence}: {parts}",
        evidence=evidence,
        places=places,
        culprits=culprits,
        refuted=IN_A_CALL,
    )


def _meant(one: Operation) -> tuple[str, str, int]:
    return one.name, one.dtypes, one.input_elements


def in_a_ring(case: Case) -> Outcome:
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
    if graph is None or not chains:
        return None
    edges = {**graph.edges, **dict.fromkeys(late, tuple(graph.edges))}
    places = [late.get(rank) or _waits_at(graph, rank, known.get(rank)) for rank in ring]
    parts = "; ".join(
        f"rank {rank} is in {place}, which {numbered(edges[rank])} {'has' if len(edges[rank]) == 1 else 'have'} not joined"
        for rank, place in list(zip(ring, places, strict=True))[:SHOWN]
    )
    evidence, stood, ceiling = graph.evidence(case), max(graph.seconds, silent(chains) if graph.recorded else 0.0), 1.0
    why = f"a ring, for {why_in_a_ring([place.call for place in places])}"
    refuted = {STALL: "no rank is at the end: the waiting is a ring"}
    if late:
        named = all(
            known[rank].end.kind == "collective" for rank in late
        )  # else a kernel that never ends looks the same
        unless = "not refuted: a kernel of its own that does not end would look the same; the flight recorders tell"
        refuted = {
            STALL: "the rank that is behind is in a call itself",
            "stuck_kernel": "a stack names the call" if named else unless,
        }
        evidence += tuple(
            _in_call(case, known[rank], f"is in {place.call}") for rank, place in list(late.items())[:SHOWN]
        )
        why, stood, ceiling = (
            "calls of different groups",
            min(graph.seconds, silent(chains)),
            1.0 if named else Level.HIGH,
        )
    return hang_between(
        case,
        MISMATCHED,
        chains,
        f"the ranks wait for each other in {why}: {parts}",
        stood=stood,
        ceiling=ceiling,
        evidence=evidence,
        places=places,
        culprits=places[:SHOWN] if late else places,
        refuted=refuted,
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
    stand = waiting and all(in_call(case, chain) for chain in waiting) and _silence(case)
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
    return f"a call of another group, as far as its card tells ({card.shown()})" if polls_there else ""


def _kind(name: str) -> str:
    """The kind of call by NCCL's names (its barrier is an all_reduce); empty for one that is none of them."""
    return "all_reduce" if "barrier" in name else next((kind for kind in KINDS if kind in name), "")


def by_counts(case: Case) -> Outcome:
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
    chains = sorted(known.values(), key=lambda chain: chain.start.rank != seats[0].rank)
    if not chains:
        return None
    return hang_between(
        case,
        MISMATCHED,
        chains,
        f"the ranks have made different calls, and wait for each other: {_counted(found)}",
        stood=found.seconds,
        evidence=_seen_in_counts(case, found),
        culprits=places[:SHOWN],
        places=places,
        refuted={STALL: "each is ahead of the others in one kind of call"},
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


def _seen_in_counts(case: Case, found: Standing) -> tuple[Evidence, ...]:
    claim = "its ranks have called different collectives, and none advances"
    told, same = f"{_counted(found)}, {found.unchanged(case.at)}", "the same calls in every rank"
    return (case.saw("nccl_ras", f"group {found.group}", claim, told, same, found.at),)


def _ahead_in(found: Standing, seat: Seat) -> str:
    """The kind of call in which a rank is ahead of others, which it waits in."""
    for kind, count in seat.launched:
        counts = [dict(one.launched).get(kind, 0) for one in found.seats]
        if count == max(counts) > min(counts):
            return kind
    return ""


# Some have made their last call


def left_early(case: Case) -> Outcome:
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
    return hang_between(
        case,
        MISMATCHED,
        [*leaving, *waiting],
        f"the ranks have made unequal numbers of calls: {leave}, while {listed(waiting)} in {calls}, "
        f"at {show(waiting[0].start.frame)}",
        patience=STRUCTURAL_SECONDS if seen and not may_talk else temporal(case),
        stood=silent([*leaving, *waiting]),
        evidence=(
            *(_in_call(case, one, "destroys its process group") for one in leaving[:2]),
            *(_in_call(case, one, f"waits {waits_as(case, one)}") for one in waiting[:2]),
            *(_seen_in_counts(case, crossed) if crossed is not None else ()),
        ),
        culprits=list(map(Place.of, [*leaving, *waiting] if crossed is None else [*waiting, *leaving])),
        places=list(map(Place.of, waiting)),
        refuted={"hung_at_exit": "training is not over in every rank"},
        advice=("compare how many batches each rank gets: which has fewer, or leaves its loop earlier?",),
    )


# In one call, as far as the stacks show


def by_sizes(case: Case) -> Outcome:
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
        arm = ("perfwatch run -- ...   # arms the flight recorder, which tells the sizes",)
    return hang_between(
        case,
        MISMATCHED,
        found.chains,
        f"all {len(found.chains)} ranks are in {found.place}, and all that they sent has arrived: {why}",
        # gloo's own threads may add up large tensors between two messages, and nothing travels meanwhile
        patience=STRUCTURAL_SECONDS if found.on_cards else temporal(case),
        stood=found.silent_seconds,
        ceiling=Level.MEDIUM,  # by exclusion: the sizes themselves only the recorders tell
        evidence=found.evidence(case),
        culprits=(),
        refuted={
            WEDGE: "nothing that went over the connections is unconfirmed; what goes over NVLink is not seen",
            STALL: "every rank is in the same call at the same line",
        },
        advice=(f"compare {unlike}", *arm),
    )


# In exchanges of mpi4py


def in_exchanges(case: Case) -> Outcome:
    """All ranks are in exchanges of mpi4py that cannot meet: all send, all receive, or they differ.

    Only where steps were counted and none comes any more: without a count, many short exchanges look the same.
    """
    chains = [case.chains[rank.pid] for rank in case.ranks]
    clocks = [case.progress[rank.pid].steps for rank in case.ranks]
    if any(one is None or not one.late for one in clocks) or not case.job.covered or len(chains) < len(case.job.ranks):
        return None
    lines = {chain.start.pid: exchange(case, chain) for chain in chains if chain.end.node.motion.distinct <= 1}
    known = [line for line in lines.values() if line is not None]
    how = _cannot_meet([frozenset(name.lower() for name in mpi_calls(line, case.job)) for line in known])
    if not known or len(known) < len(chains) or how is None:
        return None
    stood = min(clock.ago_seconds or 0.0 for rank in case.ranks if (clock := case.steps(rank)) is not None)
    places = [
        f"{line.text.strip()[:80]} at {show(one.end.node.frame)}" for one, line in zip(chains, known, strict=True)
    ]
    stay = {rank_of(chain): f"is in {place}" for chain, place in zip(chains, places, strict=True)}
    parts = [f"rank {rank} {does}" for rank, does in stay.items()]
    return hang_between(
        case,
        MISMATCHED,
        chains,
        f"{how}: {'; '.join(parts[:FEW] if len(set(places)) > 1 else places[:1])}",
        patience=temporal(case),
        stood=stood,
        ceiling=Level.HIGH,
        evidence=tuple(
            case.saw("collective", f"rank {rank}", does, f"no step for {duration(stood)}", "returns")
            for rank, does in list(stay.items())[:FEW]
        ),
        refuted={STALL: "every rank is in an exchange"},
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


# Their cards poll, and they are at different lines


def behind_cards(case: Case) -> Outcome:
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
    if not _silence(case):
        return None
    cards = [card for chain in chains[:FEW] for card in regimes(case.history, chain.start.pid)[:1]]
    evidence: tuple[Evidence, ...] = tuple(
        case.saw("gpm", name_of(case.history, one.uuid), "a kernel only polls", one.shown(), "data moves")
        for one in cards
    )
    patience, stood = temporal(case), silent(chains)
    parts = [f"rank {place.rank} at {place.line}" for place in places]
    if graph is not None and graph.edges and len(graph.edges) + len(graph.ends) >= len(chains):
        if {seat.pid for seat in graph.ends} <= case.chains.keys():  # each waits in a collective, or is waited for
            late = ", ".join(seat.name for seat in graph.ends[:FEW])
            called = min(graph.calls.values(), default="a collective")
            parts += [
                f"{late} has not joined {called}: it is in a send or receive, which NCCL does not count, or in no call"
            ]
            patience, stood = STRUCTURAL_SECONDS, min(stood, graph.seconds)
            evidence = (*graph.evidence(case), *evidence)
    return hang_between(
        case,
        MISMATCHED,
        chains,
        f"every rank waits for its card, whose kernel only polls, and no data travels between them: {'; '.join(parts)}",
        patience=patience,
        stood=stood,
        ceiling=Level.MEDIUM,  # a kernel of the program's own in one rank, or a wedge behind two lines, look the same
        evidence=evidence,
        culprits=places,
        refuted={WEDGE: "the ranks stand at different lines"},
        advice=(
            "perfwatch run -- ... the next time: the flight recorder that it arms says in which call each rank is",
        ),
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
    return [Place(one.rank, one.pid, "", show(frame)) for one, frame in zip(starts, frames, strict=True)]


# Their stacks are in different calls


def by_stacks(case: Case) -> Outcome:
    """All ranks are in different calls, or in the same one from different lines."""
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
    certain = moves is not None or any(map(makes_group, chains))  # a rank that makes a group has no data on its way
    patience = STRUCTURAL_SECONDS if certain and not exchanges else temporal(case)
    ceiling, unless = (1.0 if len(names) > 1 and not exchanges else Level.HIGH), ""
    if beside := [chain for chain in chains if may_join_beside(case, chain.end.node)]:
        patience, ceiling = temporal(case) * (COUNTS_TIMES if exchanges else 1.0), Level.MEDIUM
        unless = f", unless another thread of {numbered(list(map(rank_of, beside)))} answers them"
    parted = sorted(places.items(), key=lambda one: len(one[1]))  # the rank that differs from most is looked at first
    parts = "; ".join(f"{listed(there, 'is', 'are')} in {name} at {line}" for (name, line), there in parted)
    return hang_between(
        case,
        MISMATCHED,
        [chain for _, there in parted for chain in there],
        f"{_at_odds(names)}: {parts}{unless}",
        patience=patience,
        stood=silent(chains),
        ceiling=ceiling,
        evidence=tuple(_in_call(case, one, f"waits in {name}") for (name, _), there in parted for one in there),
        refuted=IN_A_CALL,
    )


def _at_odds(calls: set[str]) -> str:
    """What ranks in these calls do, in words."""
    if calls == {BEGUN}:
        return "every rank waits for a send or receive that it has begun, and none answers another's"
    if calls <= RECEIVES:
        return ALL_RECEIVE
    if calls <= SENDS:
        return ALL_SEND
    return f"the ranks wait for each other in different {'calls' if calls & POINT_TO_POINT else 'collectives'}"


# What several of these share


def _in_call(case: Case, chain: Chain, claim: str) -> Evidence:
    observed = f"{Place.of(chain).line} for {duration(silent([chain]))}"
    return case.saw("collective", f"rank {rank_of(chain)}", claim, observed, "all ranks in the same call")


def _silence(case: Case) -> bool:
    """True if it is known that nothing travels between the ranks: large objects take their time over gloo's connections."""
    moved = between_ranks(case)
    return moved is not None and moved <= SILENT_BYTES_PER_SECOND
