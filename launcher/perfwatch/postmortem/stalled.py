"""The job stood in a collective: which ranks are at fault, by their flight recorders.

Each group is judged by its own counts. A rank waits in its oldest collective that is not over. A member of that group

- has not come, if it has called less often, or wrote no entry of the call though its dump is there;
- is held up, if it has called it and is still in an earlier call;
- has finished, if its own count says so.

A rank that has not finished what other members have finished does not wait for them: its card is stuck. (Of a call in which one rank
gives and the others take, that one finishes first: such a call tells nothing of the kind.) At fault are the ranks that are stuck so, and
those that others wait for and that wait for no rank themselves; where there are none of these, the ranks that wait for each other in a
ring.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.questions import show, shown_call, user_frame
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Link, Missing, Outcome
from perfwatch_probes import readings as r

ALL_SEEN, SOME_SEEN, UNSEEN_RANK, TOGETHER, UNLIKE = 0.95, 0.85, 0.7, 0.65, 0.9
MOST_LINKS, MOST_EVIDENCE = 12, 8
CAUSE = Cause("stalled_collective", "hung", "user_code", (r.RecordedGroup,))
SHOWN = 8
MAIN = "MainThread"
OF_ALL = "default_pg"  # torch's description of the group of all ranks; gloo's recorder names no members

GroupKey = tuple[str, tuple[int, ...]]  # its name and its ranks
Dumps = dict[GroupKey, dict[int, r.RecordedGroup]]

HERE, FINISHED, ABSENT, HELD_UP, UNSEEN = "here", "finished", "absent", "held up", "unseen"
ONE_SIDED = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter")
SAME_SIZES = (
    "all_reduce",
    "broadcast",
    "_all_gather_base",
    "_allgather_base",
    "all_gather",
    "_reduce_scatter_base",
    "reduce_scatter",
)


# Who waits for whom


@dataclass(frozen=True)
class Waiting:
    """The call that a rank waits in, and what of it each member of the group says."""

    rank: int
    group: r.RecordedGroup
    operation: r.Operation
    members: dict[int, str] = field(default_factory=dict)

    def those(self, *states: str) -> tuple[int, ...]:
        """Members in one of these states, without the rank itself."""
        return tuple(rank for rank, state in self.members.items() if state in states and rank != self.rank)

    @property
    def call(self) -> str:
        """``all_reduce 3199 of Float 7087872``."""
        return " ".join(shown_call(self.operation).split())

    @property
    def name(self) -> str:
        """The group as a person knows it: ``EXPERT_MODEL_PARALLEL_GROUP (72)``."""
        return group_name(self.group)


@dataclass(frozen=True)
class CallGraph:
    """Who waits for whom over all groups, and who is at the end of it."""

    dumps: Dumps
    waits: dict[int, Waiting]
    ranks: frozenset[int]  # whose dumps were read
    stuck: tuple[int, ...]  # ranks that have not finished what others have
    absent: tuple[int, ...]  # ranks that others wait for, and that wait for no rank
    unseen: tuple[int, ...]  # ranks without a dump in calls that every other member has come to
    unlike: tuple[Waiting, ...] = ()  # ranks that called something else under one number
    ring: tuple[int, ...] = ()  # ranks each of which waits for the next one, the last for the first

    @property
    def faulty(self) -> tuple[int, ...]:
        """The ranks at fault, of all that wrote a dump."""
        return tuple(sorted({*self.stuck, *self.absent}))

    @property
    def together(self) -> bool:
        """True if every rank is in one and the same call, which does not end."""
        calls = {(one.group.group, one.operation.sequence) for one in self.waits.values()}
        return len(self.waits) > 1 and self.waits.keys() == self.ranks and len(calls) == 1 and not self.unseen


def call_graph(case: Case) -> CallGraph | None:
    """The graph of the newest dumps; None where there are no dumps, or every call in them is over."""
    dumps: Dumps = {}
    newest = [case.history.latest(r.RecordedGroup, *key) for key in case.history.entities(r.RecordedGroup)]
    read = [seen.reading for seen in newest if seen is not None]
    everyone = tuple(range(max((one.rank for one in read), default=-1) + 1))
    for one in read:
        members = one.members or (everyone if one.description == OF_ALL else ())
        one = msgspec.structs.replace(one, members=members)
        dumps.setdefault((one.group, members), {})[one.rank] = one
    ranks = frozenset(rank for members in dumps.values() for rank in members)
    oldest = _oldest(dumps)
    if not oldest:
        return None
    waits = {rank: _waits(rank, dumps, oldest) for rank in oldest}
    stuck = tuple(rank for rank, one in waits.items() if _is_stuck(one))
    edges = {rank: () if rank in stuck else one.those(ABSENT, HELD_UP) for rank, one in waits.items()}
    awaited = {target for targets in edges.values() for target in targets}
    absent = tuple(sorted(rank for rank in awaited if not edges.get(rank) and rank not in stuck))
    unlike = _unlike(waits.values())
    unseen = () if stuck or absent else _unseen(waits.values())
    ring = () if stuck or absent else _ring(edges)
    return CallGraph(dumps, waits, ranks, stuck, absent, unseen, unlike, ring)


def _ring(edges: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks of one ring, if every rank that is waited for waits itself."""
    path: list[int] = []
    here = min((rank for rank, targets in edges.items() if targets), default=None)
    while here is not None and here not in path:
        path.append(here)
        here = next(iter(edges.get(here, ())), None)
    return () if here is None else tuple(path[path.index(here) :])


def group_name(group: r.RecordedGroup) -> str:
    """``EXPERT_MODEL_PARALLEL_GROUP (72)``."""
    same = group.description in ("", "undefined", group.group)  # torch calls a group so that was given no description
    return group.group if same else f"{group.description} ({group.group})"


Oldest = dict[int, tuple[r.RecordedGroup, r.Operation]]


def _oldest(dumps: Dumps) -> Oldest:
    """By rank, in rank order, its oldest collective that is not over, over all its groups.

    Sends and receives are left out: a pipeline posts them long before their turn.
    """
    found: Oldest = {}
    for members in dumps.values():
        for rank, group in members.items():
            for call in _pending(group):
                if rank not in found or call.order < found[rank][1].order:
                    found[rank] = (group, call)
    return dict(sorted(found.items()))


def _waits(rank: int, dumps: Dumps, oldest: Oldest) -> Waiting:
    """What a rank waits in: its oldest call, or the oldest one that others have finished, unless it waits for some rank before."""
    first = _seen_from(rank, *oldest[rank], dumps, oldest)
    if first.those(ABSENT) or _is_stuck(first):
        return first
    own = [(members[rank], call) for members in dumps.values() if rank in members for call in _pending(members[rank])]
    later = (_seen_from(rank, group, call, dumps, oldest) for group, call in sorted(own, key=lambda one: one[1].order))
    return next(filter(_is_stuck, later), first)


def _is_stuck(one: Waiting) -> bool:
    return one.operation.name not in ONE_SIDED and bool(one.those(FINISHED)) and not one.those(ABSENT)


def _pending(group: r.RecordedGroup) -> list[r.Operation]:
    return [call for call in group.operations if not call.point_to_point and call.state != "completed"]


def _seen_from(rank: int, group: r.RecordedGroup, call: r.Operation, dumps: Dumps, oldest: Oldest) -> Waiting:
    here = dumps[group.group, group.members]
    seen = {one for members in dumps.values() for one in members}
    states = {}
    for member in group.members or tuple(here):
        there = here.get(member)
        if there is None:
            states[member] = ABSENT if member in seen else UNSEEN
        else:
            states[member] = _state(there, call, oldest.get(member))
    return Waiting(rank, group, call, states)


def _state(there: r.RecordedGroup, call: r.Operation, busy: tuple[r.RecordedGroup, r.Operation] | None) -> str:
    entries = {one.sequence: one for one in there.operations if not one.point_to_point}
    own = entries.get(call.sequence)
    if (there.completed or 0) >= call.sequence or (own is not None and own.state == "completed"):
        return FINISHED
    if own is None and (there.enqueued is None or there.enqueued < call.sequence):
        return ABSENT
    if busy is not None and (busy[0].group, busy[0].members) == (there.group, there.members):
        return HERE if busy[1].sequence == call.sequence else HELD_UP
    return HELD_UP if busy is not None else HERE


def _unseen(waits: Iterable[Waiting]) -> tuple[int, ...]:
    """Ranks without a dump that a call waits for, where all others have come."""
    return tuple(sorted({rank for one in waits for rank in one.those(UNSEEN)}))


def _unlike(waits: Iterable[Waiting]) -> tuple[Waiting, ...]:
    """The ranks of the first group in which one number stands for different calls; none where all agree."""
    alike: dict[tuple[str, tuple[int, ...], int], list[Waiting]] = {}
    for one in waits:
        alike.setdefault((one.group.group, one.group.members, one.operation.sequence), []).append(one)
    for calls in alike.values():
        if len({_signature(one.operation) for one in calls}) > 1:
            return tuple(calls)
    return ()


def _signature(call: r.Operation) -> tuple[str, str, str]:
    sizes = call.input_sizes if call.name in SAME_SIZES else ""
    return call.name, sizes, call.dtypes if sizes else ""


# What is said of it


def judge(case: Case) -> Outcome:
    """Fires where the dumps show a collective that had not ended, and who was not in it."""
    graph = call_graph(case)
    if graph is None:
        return None
    if graph.unlike:
        return _mismatched(case, graph)
    if graph.faulty:
        return _stalled(case, graph)
    if graph.ring:
        return _ringed(case, graph)
    if graph.unseen:
        return _without_dump(case, graph)
    return _together(case, graph) if graph.together else None


def faulty_ranks(case: Case) -> tuple[int, ...]:
    """The ranks at fault by the dumps alone, for an end that only follows from them."""
    graph = call_graph(case)
    return () if graph is None or graph.unlike else graph.faulty or graph.ring


def culprit(case: Case, rank: int) -> Culprit:
    """A rank, with its line where a stack of it was given."""
    return Culprit(pid=pid_of(case, rank), rank=rank, frame=frame_of(case, rank))


def _stalled(case: Case, graph: CallGraph) -> Finding:
    said = []
    for ranks, tell in ((graph.absent, _never_joined), (graph.stuck, _never_finished)):
        by_call: dict[str, list[int]] = {}
        for rank in ranks:
            by_call.setdefault(tell(graph, rank), []).append(rank)
        said += [f"{listed(same)} {words}" for words, same in by_call.items()]
    victims = [rank for rank, one in graph.waits.items() if {*one.those(ABSENT, HELD_UP)} & {*graph.faulty}]
    victims = [rank for rank in victims if rank not in graph.faulty]
    whole = all(rank in graph.ranks for one in graph.waits.values() for rank in one.members)
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary="; ".join(said) + _waiting(victims, len(graph.waits.keys() - {*victims, *graph.faulty})),
        confidence=ALL_SEEN if whole else SOME_SEEN,
        owner="gpu" if graph.stuck and not graph.absent else CAUSE.owner,
        culprits=tuple(culprit(case, rank) for rank in graph.faulty),
        wait_chain=_links(case, graph),
        evidence=tuple(_evidence(case, graph))[:MOST_EVIDENCE],
        alternatives=(
            Alternative(cause="wedged_collective", refuted_by="not every rank had come to that call"),
            Alternative(
                cause="straggling_rank", refuted_by="the ranks gave up waiting: the call did not end within its timeout"
            ),
        ),
        next=_next(case, graph),
    )


def _never_joined(graph: CallGraph, rank: int) -> str:
    one = _waiter(graph, rank, ABSENT, HELD_UP)
    return f"never joined {one.call} of group {one.name}" if one is not None else "never came"


def _never_finished(graph: CallGraph, rank: int) -> str:
    one = graph.waits[rank]
    return f"did not finish {one.call} of group {one.name}, which {listed(one.those(FINISHED))} finished"


def _waiter(graph: CallGraph, rank: int, *states: str) -> Waiting | None:
    """A rank that waits for another one in such a state: best one that waits for it alone, and in the first call that it lacks."""
    found = [one for one in graph.waits.values() if one.members.get(rank) in states and one.rank != rank]
    alone = {one.rank: len({*one.those(ABSENT, HELD_UP)} - {*graph.faulty}) for one in found}
    return min(
        found, key=lambda one: (one.members[rank] != ABSENT, alone[one.rank], one.operation.sequence), default=None
    )


def _waiting(ranks: list[int], others: int) -> str:
    said = f"; {listed(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for that" if ranks else ""
    more = f"{others} more rank{'s' * (others > 1)}"
    return said + (f"; {more} {'are' if others > 1 else 'is'} in calls that did not end either" if others else "")


def _evidence(case: Case, graph: CallGraph) -> list[Evidence]:
    found = []
    for rank in graph.faulty:
        one = _waiter(graph, rank, ABSENT, HELD_UP)
        if one is None:
            continue
        there = graph.dumps[one.group.group, one.group.members].get(rank)
        others = [*one.those(HERE), one.rank]
        if one.members[rank] == HELD_UP:
            claim, reached = (
                "has called it, and is still in an earlier call",
                f"in call {(there.completed or 0) + 1}" if there else "",
            )
        elif there is None or there.enqueued is None:
            claim, reached = "its dump has no entry of this call", f"no entry of call {one.operation.sequence}"
        else:
            claim, reached = "has called less often than the others", f"call {there.enqueued}"
        observed = f"rank {rank}: {reached}; {listed(others)}: in call {one.operation.sequence}"
        entity = f"rank {rank}, group {one.name}"
        found.append(case.saw("flight_recorder", entity, claim, observed, "the same call in every rank"))
    for rank in graph.stuck:
        one = graph.waits[rank]
        here = graph.dumps[one.group.group, one.group.members]
        done = {other: here[other].completed for other in one.those(FINISHED) if other in here}
        observed = f"rank {rank}: finished {one.group.completed}; " + ", ".join(
            f"rank {other}: {count}" for other, count in list(done.items())[:4]
        )
        claim = "has not finished what the others have finished"
        entity = f"rank {rank}, group {one.name}"
        found.append(case.saw("flight_recorder", entity, claim, observed, "the same call in every rank"))
    return found


def _links(case: Case, graph: CallGraph) -> tuple[Link, ...]:
    links = []
    for rank, one in graph.waits.items():
        targets = one.those(ABSENT, HELD_UP)
        if rank in graph.stuck or not targets:
            continue
        frame = one.operation.frames[0] if one.operation.frames else None
        links.append(
            Link(
                pid=pid_of(case, rank),
                rank=rank,
                waits_for=f"{one.call} of group {one.name}: {listed(targets)} {'has' if len(targets) == 1 else 'have'} not come",
                frame=None if frame is None else f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})",
            )
        )
    return tuple(links[:MOST_LINKS])


def _next(case: Case, graph: CallGraph) -> tuple[str, ...]:
    ranks = listed(graph.faulty)
    if any(frame_of(case, rank) for rank in graph.faulty):
        return (f"read the line of {ranks}: it tells why it did not come",)
    look = f"give the log and a stack of {ranks} to autopsy as well: they tell why"
    stuck = (
        (f"look at the GPU of {listed(graph.stuck)}: dmesg | grep -i xid; nvidia-smi -q -d ECC",) if graph.stuck else ()
    )
    return (*stuck, look)


def _mismatched(case: Case, graph: CallGraph) -> Finding:
    by_call: dict[str, list[int]] = {}
    for one in graph.unlike:
        by_call.setdefault(one.call, []).append(one.rank)
    fewest = min(by_call.values(), key=len)
    name = group_name(graph.unlike[0].group)
    calls = "; ".join(f"{listed(ranks)}: {call}" for call, ranks in by_call.items())
    half = 2 * len(fewest) >= len(graph.unlike)
    return Finding(
        cause="mismatched_collective",
        state="hung",
        summary=f"the ranks of group {name} are not in the same call: {calls}",
        confidence=UNLIKE,
        owner="user_code",
        culprits=tuple(culprit(case, one.rank) for one in graph.unlike if half or one.rank in fewest),
        evidence=(
            case.saw("flight_recorder", f"group {name}", "one number stands for different calls", calls, "one call"),
        ),
        alternatives=(Alternative(cause="stalled_collective", refuted_by="every one of these ranks is in a call"),),
        next=("make every rank take the same branch before that call; TORCH_DISTRIBUTED_DEBUG=DETAIL names the line",),
    )


def _ringed(case: Case, graph: CallGraph) -> Finding:
    ring = [graph.waits[rank] for rank in graph.ring]
    nexts = (*graph.ring[1:], graph.ring[0])
    said = [
        f"rank {one.rank} is in {one.call} of group {one.name} and waits for rank {other}"
        for one, other in zip(ring, nexts, strict=True)
    ]
    victims = [
        rank
        for rank, one in graph.waits.items()
        if rank not in graph.ring and {*one.those(ABSENT, HELD_UP)} & {*graph.ring}
    ]
    return Finding(
        cause="mismatched_collective",
        state="hung",
        summary=f"ranks wait for each other in a ring: {'; '.join(said[:SHOWN])}" + _waiting(victims, 0),
        confidence=UNLIKE,
        owner="user_code",
        culprits=tuple(culprit(case, rank) for rank in graph.ring),
        wait_chain=_links(case, graph),
        evidence=tuple(
            case.saw(
                "flight_recorder",
                f"rank {one.rank}, group {one.name}",
                "waits in a call that the next rank has not come to",
                told,
            )
            for one, told in zip(ring, said, strict=True)
        )[:MOST_EVIDENCE],
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="the ranks wait in a cycle: no rank is at its end"),
        ),
        next=("make every rank call its groups in the same order; TORCH_DISTRIBUTED_DEBUG=DETAIL names the line",),
    )


def _without_dump(case: Case, graph: CallGraph) -> Finding:
    one = next(wait for wait in graph.waits.values() if wait.those("unseen"))
    missing = Missing(
        witness="flight_recorder",
        reason=f"no dump of {listed(graph.unseen)} was given",
        advice="give its dump, its log or its stack as well",
    )
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"{listed(graph.unseen)} left no dump; every other rank of group {one.name} is in {one.call}",
        confidence=UNSEEN_RANK,
        owner="unknown",
        culprits=tuple(Culprit(pid=0, rank=rank) for rank in graph.unseen),
        wait_chain=(),
        evidence=(
            case.saw(
                "flight_recorder",
                f"group {one.name}",
                "all others are in one call",
                f"{listed([*one.those(HERE), one.rank])} in {one.call}; {missing.reason}",
                "a dump of each rank",
            ),
        ),
        alternatives=(
            Alternative(cause="wedged_collective", refuted_by="not excluded: no dump says that it has come"),
        ),
        next=(f"find the dump and the log of {listed(graph.unseen)}",),
    )


def _together(case: Case, graph: CallGraph) -> Finding:
    one = next(iter(graph.waits.values()))
    return Finding(
        cause="wedged_collective",
        state="hung",
        summary=f"every rank of group {one.name} is in {one.call}, and it did not end",
        confidence=TOGETHER,
        owner="fabric",
        evidence=(
            case.saw(
                "flight_recorder",
                f"group {one.name}",
                "all ranks are in one call",
                f"{listed(one.members)} in {one.call}",
            ),
        ),
        alternatives=(Alternative(cause="stalled_collective", refuted_by="every rank has come to that call"),),
        next=("NCCL_DEBUG=INFO; ibstat; nvidia-smi nvlink -s on every node of these ranks",),
    )


# Words


def listed(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 9 and 14``, ``ranks 0, 1, 2 and 13 more``."""
    every = sorted(set(ranks))
    if len(every) == 1:
        return f"rank {every[0]}"
    head, rest = every[:SHOWN], len(every) - SHOWN
    if rest > 0:
        return f"ranks {', '.join(map(str, head))} and {rest} more"
    return f"ranks {', '.join(map(str, head[:-1]))} and {head[-1]}"


def pid_of(case: Case, rank: int | None) -> int:
    """The process of a rank; 0 where no file tells it (then the recording has a negative number in its place)."""
    found = next((one.pid for one in case.job.ranks if one.rank == rank), 0)
    return max(0, found)


def frame_of(case: Case, rank: int | None) -> str | None:
    """Where the main thread of a rank was, by a dump of its stack; None without one."""
    pids = {member.pid for member in case.job.members.values() if member.rank == rank and member.role == "rank"}
    stacks = [seen.reading for seen in case.history.every(r.Stack) if seen.reading.pid in pids and seen.reading.frames]
    for one in sorted(stacks, key=lambda one: (one.thread != MAIN, one.tid != one.pid)):
        return show(user_frame(one) or one.frames[0])
    return None


RULES = (Rule(CAUSE, judge),)
