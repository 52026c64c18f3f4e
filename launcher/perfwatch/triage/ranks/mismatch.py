"""Every rank is in a call, and these do not belong together: each way in which that shows, from the most direct to the least.

The flight recorders name the calls. RAS counts them by kind. Stacks name the call and the line, mpi4py's only the line. A card shows that a
kernel waits, and connections show that nothing is on its way.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from perfwatch.triage.cards.gpu import polls, regime, regimes
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.thresholds import COUNTS_TIMES
from perfwatch.triage.hang import hung
from perfwatch.triage.moving.flows import SILENT_BYTES_PER_SECOND
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks.calls import (
    BEGUN,
    POINT_TO_POINT,
    RECEIVES,
    SENDS,
    call_of,
    exchange,
    in_collective,
    leaves,
    links,
    listed,
    makes_group,
    may_join_beside,
    mpi_calls,
    numbered,
    one_sided,
    rank_of,
    waits_as,
)
from perfwatch.triage.ranks.groups import Disagreement, Seat, Standing, counted_apart, disagreement, shown
from perfwatch.triage.ranks.same_call import SameCall, between_ranks, carried, same_call, travels
from perfwatch.triage.ranks.thresholds import CERTAIN, COMPARE, FEW, HIGH, MEDIUM, SHOWN
from perfwatch.triage.ranks.waitgraph import WaitGraph, wait_graph, why_in_a_ring
from perfwatch.triage.roles.rank_gaps import rank_ranges
from perfwatch.triage.rule import Cause
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.native_waits import reduces
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.frames import collective_name, show, user_frames
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Link, Outcome
from perfwatch_probes.readings import Operation, Process, Stack, Thread

MISMATCHED = Cause("mismatched_collective", "hung", "user_code", (Process, Thread, Stack))
KINDS = ("reduce_scatter", "all_gather", "all_reduce", "broadcast", "reduce", "send", "recv")  # NCCL's
# mpi4py has each collective twice: for buffers, and for objects. A send may wait for its receiver.
MPI_SENDS, MPI_RECEIVES = frozenset({"send", "ssend", "rsend"}), frozenset({"recv", "probe", "mprobe"})
ALL_SEND, ALL_RECEIVE = "every rank sends and none receives", "every rank waits to receive and none sends"
IN_A_CALL = Alternative(cause="stalled_collective", refuted_by="every rank is in a collective")

Launched = tuple[tuple[str, int], ...]  # how often each kind of call was made


def by_records(case: Case) -> Outcome:
    """The flight recorders show one sequence number that means different calls: a hang, or mixed-up data where training went on."""
    found = disagreement(case)
    if found is None:
        return None
    alike = Counter(_meant(one) for _, _, one in found.calls)
    odd_first = sorted(found.calls, key=lambda call: alike[_meant(call[2])])
    parts = "; ".join(
        f"rank {rank}: {shown(one)}{f' at {show(one.frames[0])}' if one.frames else ''}"
        for rank, _, one in odd_first[:SHOWN]
    )
    fewest = min(alike.values())
    odd = [call for call in odd_first if alike[_meant(call[2])] == fewest and 2 * fewest < len(odd_first)]
    culprits = tuple(
        Culprit(pid=pid, rank=rank, frame=show(one.frames[0]) if one.frames else None)
        for rank, pid, one in odd or odd_first
    )
    if found.over and any(one.kind == "still" for one in case.progress.values()):
        return None  # it stands for another reason, which the rules about hangs know better
    if found.over or case.moving:
        return Finding(
            cause=MISMATCHED.name,
            state="slow",
            summary=f"the ranks of group {found.group} called operation {found.sequence} with different {found.what}s, and "
            f"NCCL went on: what they got is garbage ({parts})",
            confidence=CERTAIN,
            owner=MISMATCHED.owner,
            culprits=culprits,
            evidence=_recorded(case, found),
            alternatives=(Alternative(cause="stalled_collective", refuted_by="the ranks go on"),),
            next=(COMPARE,),
            lost_share=1.0,
        )
    calls = {rank: shown(one) for rank, _, one in found.calls}
    chains = [chain for chain in case.chains.values() if chain.start.rank in calls]
    if not chains:
        return None
    return _mismatch(
        case,
        min(chains, key=_silent),
        summary=f"the ranks of group {found.group} mean different {found.what}s by operation {found.sequence}: {parts}",
        patience=STRUCTURAL_SECONDS,
        evidence=_recorded(case, found),
        culprits=culprits,
        wait_chain=links(case, chains, calls),
    )


def in_a_ring(case: Case) -> Outcome:
    """Ranks wait for each other, each in another group."""
    graph = wait_graph(case)
    ring = graph.cycle if graph is not None else ()
    chains = [chain for chain in case.chains.values() if chain.start.rank in ring]
    if graph is None or not chains:
        return None
    parts = "; ".join(
        f"rank {rank} is in {graph.calls.get(rank, 'a collective')}"
        + (f" at {show(graph.frames[rank])}" if rank in graph.frames else "")
        + f", to which {numbered(graph.edges[rank])} {'has' if len(graph.edges[rank]) == 1 else 'have'} not come"
        for rank in ring[:SHOWN]
    )
    why = why_in_a_ring([graph.calls.get(rank, "") for rank in ring])
    stands = {chain.start.rank: chain.start.frame or chain.end.node.frame for chain in chains}
    return _mismatch(
        case,
        chains[0],
        summary=f"the ranks wait for each other in a ring, for {why}: {parts}",
        patience=STRUCTURAL_SECONDS,
        silent=max(graph.seconds, min(map(_silent, chains)) if graph.recorded else 0.0),
        ceiling=1.0 if graph.recorded else CERTAIN,
        evidence=graph.evidence(case),
        culprits=tuple(
            Culprit(pid=graph.seats[rank].pid or 0, rank=rank, frame=show(graph.frames.get(rank) or stands.get(rank)))
            for rank in ring
        ),
        wait_chain=links(case, chains, graph.calls),
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="no rank is at the end: the waiting is a ring"),
        ),
    )


def by_counts(case: Case) -> Outcome:
    """RAS counts the members of a group in different calls, unchanged.

    Members of a group must make the same calls in the same order, so counts that have crossed are wrong by themselves.
    """
    found = counted_apart(case)
    chains = {rank_of(chain): chain for chain in case.chains.values() if chain.start.rank is not None}
    if found is None or not chains:
        return None
    alike = Counter(seat.launched for seat in found.seats)
    odd_first = sorted(found.seats, key=lambda seat: alike[seat.launched])
    told = _counted(found)
    first = chains.get(-1 if odd_first[0].rank is None else odd_first[0].rank, next(iter(chains.values())))
    frames = {rank: show(chain.start.frame or chain.end.node.frame) for rank, chain in chains.items()}
    return _mismatch(
        case,
        first,
        summary=f"the ranks have made different calls, and wait for each other: {told}",
        patience=STRUCTURAL_SECONDS,
        silent=found.seconds,
        ceiling=CERTAIN,
        evidence=_seen_in_counts(case, found),
        culprits=tuple(
            Culprit(pid=seat.pid or 0, rank=seat.rank, frame=frames.get(-1 if seat.rank is None else seat.rank))
            for seat in odd_first[:SHOWN]
        ),
        wait_chain=links(
            case, chains.values(), {one.rank: _ahead_in(found, one) for one in found.seats if one.rank is not None}
        ),
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="each is ahead of the others in one kind of call"),
        ),
    )


def _counted(found: Standing) -> str:
    """``rank 3: 42 all_reduce, 1 all_gather; ranks 0, 1, 2: 43 all_reduce``; the rarest counts first."""
    ranks: dict[Launched, list[int | str]] = {}
    for seat in found.seats:
        ranks.setdefault(seat.launched, []).append("?" if seat.rank is None else seat.rank)
    return "; ".join(
        f"{numbered(those)}: {', '.join(f'{count} {kind}' for kind, count in launched) or 'none'}"
        for launched, those in sorted(ranks.items(), key=lambda one: len(one[1]))[:SHOWN]
    )


def _seen_in_counts(case: Case, found: Standing) -> tuple[Evidence, ...]:
    claim = "its ranks have called different collectives, and none goes on"
    told, same = f"{_counted(found)}, {found.unchanged(case.at)}", "the same calls in every rank"
    return (case.saw("nccl_ras", f"group {found.group}", claim, told, same, found.at),)


def _ahead_in(found: Standing, seat: Seat) -> str:
    """The kind of call in which a rank is ahead of others, which it waits in."""
    least = {kind: min(dict(one.launched).get(kind, 0) for one in found.seats) for kind, _ in seat.launched}
    most = {kind: max(dict(one.launched).get(kind, 0) for one in found.seats) for kind, _ in seat.launched}
    return next((kind for kind, count in seat.launched if count == most[kind] > least[kind]), "")


# In calls of different groups, of which only one shows who has come


@dataclass(frozen=True)
class _Behind:
    """A rank that the others wait for: which call it is in instead, and how sure that is."""

    chain: Chain
    told: str
    ceiling: float = 1.0


def in_other_groups(case: Case) -> Outcome:
    """All ranks are in calls, and those that are behind in one group are in a call of another.

    NCCL counts who is behind in its groups; gloo's groups it does not know. So the rank that the others wait for is behind, and yet in
    a call: its stack names one that the others do not wait in, or gloo carries one out while its card idles, or its card holds a kernel
    that only polls while another group of the same ranks is level. What it waits for are the ranks that wait for it.
    """
    graph = wait_graph(case)
    if graph is None or not graph.edges or not graph.ends or not case.job.covered:
        return None
    waiting = [chain for chain in case.chains.values() if graph.edges.get(rank_of(chain))]
    ends = [case.chains.get(seat.pid or 0) for seat in graph.ends]
    behind = [one for chain in ends if chain is not None and (one := _behind(case, graph, chain, waiting))]
    if not waiting or len(behind) < len(ends) or len(waiting) + len(behind) < len(case.ranks):
        return None
    if not all(in_collective(case, chain) for chain in waiting) or not _silence(case):
        return None
    late = [one.chain for one in behind]
    op = next((graph.calls[rank_of(chain)] for chain in waiting if rank_of(chain) in graph.calls), "a collective")
    parts = [
        f"{numbered(list(map(rank_of, waiting)))} {'is' if len(waiting) == 1 else 'are'} in {op} at {_line(waiting[0])}, "
        f"to which {numbered(list(map(rank_of, late)))} {'has' if len(late) == 1 else 'have'} not come",
        *(f"rank {rank_of(one.chain)} is {one.told} at {_line(one.chain)}" for one in behind[:SHOWN]),
    ]
    certain = behind[0].ceiling == 1.0
    return _mismatch(
        case,
        late[0],
        summary=f"the ranks wait for each other in calls of different groups: {'; '.join(parts)}",
        patience=STRUCTURAL_SECONDS,
        silent=min(graph.seconds, *map(_silent, (*waiting, *late))),
        ceiling=min(1.0 if graph.recorded else CERTAIN, *(one.ceiling for one in behind)),
        evidence=(*graph.evidence(case), *(_seen_behind(case, one) for one in behind[:SHOWN])),
        culprits=tuple(
            Culprit(pid=one.start.pid, rank=one.start.rank, frame=_line(one)) for one in (*late, *waiting)[:SHOWN]
        ),
        wait_chain=links(case, [*waiting, *late], graph.calls),
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="the rank that is behind is in a call itself"),
            Alternative(
                cause="stuck_kernel",
                refuted_by="a stack names the call"
                if certain
                else "not refuted: a kernel of its own that does not end would look the same; the flight recorders tell",
            ),
        ),
    )


def _behind(case: Case, graph: WaitGraph, chain: Chain, waiting: list[Chain]) -> _Behind | None:
    """What a rank that others wait for is in instead; None where that is not a call of another group."""
    if chain.end.kind == "collective" and chain.end.still and chain.end.node.stack is not None:
        name = collective_name(chain.end.node.stack)
        others = {_kind(graph.calls.get(rank_of(one), "")) for one in waiting}
        if name is None or not _kind(name):
            return None
        if _kind(name) not in others | {""}:
            return _Behind(chain, f"in {name}")
        # Of the same kind: perhaps the very call, not counted yet, where it is not another library's.
        return _Behind(chain, f"in {name} over gloo") if _over_gloo(case, chain.start.pid) else None
    if chain.end.kind != "gpu" or not chain.end.detail or not in_sync(case.history, chain.end.node.stack):
        return None
    card, certain = regime(case.history, chain.end.detail), cards_of(case.history, chain.start.pid).certain
    if not card.polls or card.computes or not certain or not _level_elsewhere(graph, chain, waiting):
        return None
    # A kernel of its own that never ends would look the same, and would have stopped the job just so.
    return _Behind(chain, "in a call of another group, as far as its card tells, and waits for it", HIGH)


def _over_gloo(case: Case, pid: int) -> bool:
    """True if a collective of gloo's is under way in a rank, and its cards have nothing to do: one of NCCL's would hold a kernel."""
    cards = regimes(case.history, pid)
    return bool(cards) and all(card.kind == "idle" for card in cards) and reduces(case.history, pid)


def _level_elsewhere(graph: WaitGraph, chain: Chain, waiting: list[Chain]) -> bool:
    """True if another group, in which this rank and one that waits for it are, has been called equally often by all."""
    ranks = {rank_of(one) for one in waiting}
    return any(
        not one.behind
        and not one.lost
        and rank_of(chain) in (members := {seat.rank for seat in one.seats})
        and bool(members & ranks)
        and all(seat.reached > 0 for seat in one.seats)
        for one in graph.standings
    )


def _kind(name: str) -> str:
    """The kind of call by NCCL's names (its barrier is an all_reduce); empty for one that is none of them."""
    return "all_reduce" if "barrier" in name else next((kind for kind in KINDS if kind in name), "")


def _seen_behind(case: Case, one: _Behind) -> Evidence:
    if one.chain.end.kind == "collective":
        return _in_call(case, one.chain, f"is {one.told}")
    entity, card = f"rank {rank_of(one.chain)}", regime(case.history, one.chain.end.detail)
    shown = f"{card.shown()}, for {_silent(one.chain):.1f} s"
    alone = "the others' call, to which it has not come, holds their cards alone"
    return case.saw(card.source, entity, "its card holds a kernel that only polls", shown, alone)


# Some have made their last call


def left_early(case: Case) -> Outcome:
    """Some ranks end their process group, the others wait in one more call: all stand still, and none is anywhere else."""
    leaving = [chain for chain in case.still_chains if leaves(chain)]
    if not leaving or not case.job.covered:
        return None
    still = {chain.start.pid for chain in case.still_chains}
    waiting = [
        chain
        for pid, chain in case.chains.items()
        if not leaves(chain) and (pid in still or _polls_at_one_line(case, chain))
    ]
    if not waiting or len(leaving) + len(waiting) < len(case.ranks):
        return None
    if any(chain.end.kind not in ("collective", "gpu", "native") for chain in waiting):
        return None  # where no GPU can be asked, a wait for it is seen as a native call that does not return
    where = ", ".join(f"rank {rank_of(chain)} at {show(chain.start.frame)}" for chain in leaving[:FEW])
    leave = f"{where} {'destroys its' if len(leaving) == 1 else 'destroy their'} process group"
    crossed = counted_apart(case)
    if crossed is not None:  # what the rank that has called most waits in is what the others never call
        reached = {seat.pid: seat.reached for seat in crossed.seats}
        waiting.sort(key=lambda chain: -reached.get(chain.start.pid, 0))
    calls = "one more" if crossed is None else f"different calls ({_counted(crossed)})"
    stay = f"{listed([rank_of(chain) for chain in waiting])} in {calls}, at {show(waiting[0].start.frame)}"
    own, polling = carried(case, WINDOW_SECONDS), [polls(case.history, chain.start.pid) for chain in waiting]
    seen = all(one or in_collective(case, chain) for one, chain in zip(polling, waiting, strict=True))
    may_talk = sum(polling) > 1 and (own is None or not own.silent)  # in a slow collective among themselves
    return _mismatch(
        case,
        leaving[0],
        summary=f"the ranks have made unequal numbers of calls: {leave}, while {stay}",
        patience=STRUCTURAL_SECONDS if seen and not may_talk else temporal(case),
        silent=min(map(_silent, (*leaving, *waiting))),
        evidence=tuple(
            _in_call(case, one, "destroys its process group" if leaves(one) else f"waits {waits_as(case, one)}")
            for one in (*leaving[:2], *waiting[:2])
        )
        + (_seen_in_counts(case, crossed) if crossed is not None else ()),
        culprits=_culprits((*waiting, *leaving) if crossed is not None else (*leaving, *waiting)),
        wait_chain=(*_links(leaving), *links(case, waiting, {})),
        alternatives=(Alternative(cause="hung_at_exit", refuted_by="training is not over in every rank"),),
        advice=("compare how many batches each rank gets: which has fewer, or leaves its loop earlier?",),
    )


def _polls_at_one_line(case: Case, chain: Chain) -> bool:
    return chain.start.motion.distinct <= 1 and polls(case.history, chain.start.pid)


# In one call, as far as the stacks show


def by_sizes(case: Case) -> Outcome:
    """All ranks are in one call over sockets, all that was sent has arrived, and none goes on: they mean different things by it.

    NCCL does not compare sizes. Over NVLink ranks that disagree may go on with garbage; over a network the one that expects more
    waits for bytes that no rank will send (measured: four ranks over sockets, a gradient of one more column in rank 1). gloo fails
    there; of its calls that wait for each other those of different groups are left (three pairs in a ring, through one helper).
    """
    found = same_call(case)
    if not isinstance(found, SameCall) or not found.delivered:
        return None
    return _mismatch(
        case,
        found.chains[0],
        summary=f"all {len(found.chains)} ranks are in {found.place}, and all that they sent has arrived: "
        + ("their tensors differ in size or type" if found.on_cards else "their calls are not of the same group"),
        # gloo's own threads may add up large tensors between two messages, and nothing travels meanwhile
        patience=STRUCTURAL_SECONDS if found.on_cards else temporal(case),
        silent=found.silent_seconds,
        ceiling=MEDIUM,  # by exclusion: the sizes themselves only the recorders tell
        evidence=found.evidence(case),
        culprits=(),
        wait_chain=_links(found.chains),
        alternatives=(
            Alternative(
                cause="wedged_collective",
                refuted_by="nothing that went over the connections is unconfirmed; what goes over NVLink is not seen",
            ),
            Alternative(cause="stalled_collective", refuted_by="every rank is in the same call at the same line"),
        ),
        advice=(
            "compare the tensor's shape and dtype in each rank before this call",
            "perfwatch run -- ...   # arms the flight recorder, which tells the sizes",
        )
        if found.on_cards
        else ("compare the group that each rank hands to this call, and the order in which they come to it",),
    )


# In exchanges of mpi4py


def in_exchanges(case: Case) -> Outcome:
    """All ranks are in exchanges of mpi4py that cannot meet: all send, all receive, or they differ.

    Only where steps were counted and none comes any more: without a count, many short exchanges look the same.
    """
    chains = [case.chains[rank.pid] for rank in case.ranks]
    lines = [line for chain in chains if _is_late(case, chain) and (line := exchange(case, chain)) is not None]
    if not lines or len(lines) < len(case.job.ranks) or not case.job.covered:
        return None
    how = _cannot_meet([frozenset(name.lower() for name in mpi_calls(line, case.job)) for line in lines])
    if how is None:
        return None
    silent = min(clock.ago_seconds or 0.0 for rank in case.ranks if (clock := case.steps(rank)) is not None)
    places = [
        f"{line.text.strip()[:80]} at {show(one.end.node.frame)}" for one, line in zip(chains, lines, strict=True)
    ]
    parts = [f"rank {rank_of(chain)} is in {place}" for chain, place in zip(chains, places, strict=True)]
    return _mismatch(
        case,
        chains[0],
        summary=f"{how}: {'; '.join(parts[:FEW] if len(set(places)) > 1 else places[:1])}",
        patience=temporal(case),
        silent=silent,
        ceiling=HIGH,
        evidence=tuple(
            case.saw("collective", f"rank {rank_of(chain)}", f"is in {place}", f"no step for {silent:.1f} s", "returns")
            for chain, place in list(zip(chains, places, strict=True))[:FEW]
        ),
        culprits=_culprits(chains),
        wait_chain=chains[0].links,
        alternatives=(Alternative(cause="stalled_collective", refuted_by="every rank is in an exchange"),),
        advice=("Sendrecv, or Isend before Recv: a Send may wait for its receiver" if how is ALL_SEND else COMPARE,),
    )


def _is_late(case: Case, chain: Chain) -> bool:
    """True if a rank is at one line, and its next step should have come long ago."""
    steps = case.progress[chain.start.pid].steps
    return chain.end.node.motion.distinct <= 1 and steps is not None and steps.late


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
    chains = tuple(case.chains.values())
    if len(chains) < 2 or len(chains) < len(case.ranks) or not case.job.covered:
        return None
    lines = _lines(chains)
    if len(set(lines)) < 2 or not all(
        chain.end.kind in ("gpu", "collective") and polls(case.history, chain.start.pid) for chain in chains
    ):
        return None
    if not _silence(case):
        return None
    silent, uneven = min(map(_silent, chains)), _uneven(case, chains)
    parts = [f"rank {chain.start.rank} at {line}" for chain, line in zip(chains, lines, strict=True)]
    if uneven is not None:
        late = ", ".join(seat.name for seat in uneven.ends[:FEW])
        called = min(uneven.calls.values(), default="a collective")
        parts += [
            f"{late} has not come to {called}: it is in a send or receive, which NCCL does not count, or in no call"
        ]
    return _mismatch(
        case,
        chains[0],
        summary=f"every rank waits for its card, whose kernel only polls, and nothing travels between them: {'; '.join(parts)}",
        patience=temporal(case) if uneven is None else STRUCTURAL_SECONDS,
        silent=silent if uneven is None else min(silent, uneven.seconds),
        ceiling=MEDIUM,  # a kernel of the program's own in one rank, or a wedge behind two lines, look the same
        evidence=(
            *(() if uneven is None else uneven.evidence(case)),
            *(
                case.saw("gpm", name_of(case.history, card.uuid), "a kernel only polls", card.shown(), "data moves")
                for chain in chains[:FEW]
                for card in regimes(case.history, chain.start.pid)[:1]
            ),
        ),
        culprits=tuple(
            msgspec.structs.replace(one, frame=line)
            for chain, line in zip(chains, lines, strict=True)
            for one in chain.culprits()
        ),
        wait_chain=_links(chains),
        alternatives=(Alternative(cause="wedged_collective", refuted_by="the ranks stand at different lines"),),
        advice=(
            "perfwatch run -- ... the next time: the flight recorder that it arms says in which call each rank is",
        ),
    )


def _uneven(case: Case, chains: tuple[Chain, ...]) -> WaitGraph | None:
    """What the counts tell, where by them each of the ranks waits for another in a collective, or is waited for."""
    graph = wait_graph(case)
    if graph is None or not graph.edges or len(graph.edges) + len(graph.ends) < len(chains):
        return None
    return graph if {seat.pid for seat in graph.ends} <= {chain.start.pid for chain in chains} else None


def _lines(chains: tuple[Chain, ...]) -> list[str | None]:
    """Where each rank stands; where all stand in the same helper, the innermost of its callers that are not the same."""
    standing = [_standing(chain) for chain in chains]
    written = [user_frames(node.stack) if node.stack is not None else () for node in standing]
    differ = (frames for frames in zip(*written, strict=False) if len(set(frames)) > 1)
    return list(map(show, next(differ, [node.frame for node in standing])))


def _standing(chain: Chain) -> Node:
    """The thread that waits for the card, if it runs Python: of torch's engine the one that asked it."""
    return chain.end.node if chain.end.node.frame is not None else chain.start


# Their stacks are in different calls


def by_stacks(case: Case) -> Outcome:
    """All ranks are in different calls, or in the same one from different lines."""
    chains = case.still_chains
    if len(chains) < 2 or len(chains) < len(case.ranks) or not case.job.covered:
        return None
    if any(
        chain.end.node.stack is None or not (chain.end.kind == "collective" or makes_group(chain)) for chain in chains
    ):
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
    ceiling, unless = (1.0 if len(names) > 1 and not exchanges else HIGH), ""
    if beside := [chain for chain in chains if may_join_beside(case, chain.end.node)]:
        patience, ceiling = temporal(case) * (COUNTS_TIMES if exchanges else 1.0), MEDIUM
        unless = f", unless another thread of {_numbers(beside)} answers them"
    parted = sorted(places.items(), key=lambda one: len(one[1]))  # the rank that differs from most is looked at first
    chains = tuple(chain for _, there in parted for chain in there)
    parts = "; ".join(
        f"{_numbers(there)} {'is' if len(there) == 1 else 'are'} in {name} at {line}" for (name, line), there in parted
    )
    return _mismatch(
        case,
        chains[0],
        summary=f"{_at_odds(names)}: {parts}{unless}",
        patience=patience,
        silent=min(map(_silent, chains)),
        ceiling=ceiling,
        evidence=tuple(_in_call(case, one, f"waits in {name}") for (name, _), there in parted for one in there),
        culprits=_culprits(chains),
        wait_chain=_links(chains),
    )


def _at_odds(names: Collection[str]) -> str:
    """What ranks in these calls do, in words."""
    calls = set(names)
    if calls == {BEGUN}:
        return "every rank waits for a send or receive that it has begun, and none answers another's"
    if calls <= RECEIVES:
        return ALL_RECEIVE
    if calls <= SENDS:
        return ALL_SEND
    return f"the ranks wait for each other in different {'calls' if calls & POINT_TO_POINT else 'collectives'}"


def _numbers(chains: list[Chain]) -> str:
    """``ranks 0-2``."""
    ranks = [chain.start.rank for chain in chains if chain.start.rank is not None]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {rank_ranges(ranks)}"


# What all of these share


def _mismatch(
    case: Case,
    first: Chain,
    *,
    summary: str,
    patience: float,
    evidence: tuple[Evidence, ...],
    culprits: tuple[Culprit, ...],
    wait_chain: tuple[Link, ...],
    silent: float | None = None,
    ceiling: float = 1.0,
    alternatives: tuple[Alternative, ...] = (IN_A_CALL,),
    advice: tuple[str, ...] = (COMPARE,),
) -> Finding:
    """A hang in which no rank is elsewhere; the first chain shows that nothing moves."""
    found = hung(
        case,
        MISMATCHED.name,
        first,
        owner=MISMATCHED.owner,
        summary=summary,
        patience=patience,
        silent=silent,
        ceiling=ceiling,
        evidence=evidence,
        alternatives=alternatives,
        next=advice,
    )
    return msgspec.structs.replace(found, culprits=culprits, wait_chain=wait_chain)


def _in_call(case: Case, chain: Chain, claim: str) -> Evidence:
    observed = f"{_line(chain)} for {_silent(chain):.1f} s"
    return case.saw("collective", f"rank {rank_of(chain)}", claim, observed, "all ranks in the same call")


def _culprits(chains: Collection[Chain]) -> tuple[Culprit, ...]:
    return tuple(one for chain in chains for one in chain.culprits())


def _links(chains: Collection[Chain]) -> tuple[Link, ...]:
    return tuple(link for chain in chains for link in chain.links)


def _silence(case: Case) -> bool:
    """True if it is known that nothing travels between the ranks: large objects take their time over gloo's connections."""
    moved = between_ranks(case)
    return moved is not None and moved <= SILENT_BYTES_PER_SECOND


def _meant(one: Operation) -> tuple[str, str, int]:
    return one.name, one.dtypes, one.input_elements


def _recorded(case: Case, found: Disagreement) -> tuple[Evidence, ...]:
    return tuple(
        case.saw(
            "flight_recorder",
            f"rank {rank}",
            f"calls as operation {found.sequence} of group {found.group}",
            f"{shown(one)} ({one.state})",
            "the same in every rank",
            found.at,
        )
        for rank, _, one in found.calls[:SHOWN]
    )


def _silent(chain: Chain) -> float:
    return chain.end.silent_seconds or 0.0


def _line(chain: Chain) -> str | None:
    return show(chain.start.frame or chain.end.node.frame)
