"""Process groups as NCCL's RAS service and torch's flight recorders show them: who has made how many calls, and who waits for whom.

Counts are of launches: ranks of a healthy job are a few calls apart, and no two ranks are read at one moment. So only counts that are
the same in two answers are compared, and only within one group: the stages of a pipeline differ by design.

A rank waits in its oldest call that is not over, for those of the group that have not come to it. Where the recorders are not there, RAS'
counts stand in: those ahead in a group wait for those behind. RAS does not count sends and receives; the recorders do. A rank that sends
waits until the other one receives, which comes to that when it has nothing older to wait in: where both send first, neither does. Small
messages are taken before they are received, so a receive says less: it counts only between two ranks whose calls bear the same numbers.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.history import R, Seen, once
from perfwatch.triage.moving.motion import TORN_SHARE, moves, weights_of
from perfwatch.triage.shares.thresholds import TWICE
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r
from perfwatch_probes.readings import BATCH, UNANSWERED, Operation, RecordedGroup

SHOWN = 8  # ranks or calls that one sentence lists
FEW = 4  # pieces of evidence of one kind
APART_SECONDS = 1.5  # between two answers that are compared
UNHEARD = ("dead", "unresponsive", "missing")  # states of a member that RAS does not reach
OLD_SECONDS = 3.0  # an answer that is older is called so; ranks that are asked together answer within it
STALE_SECONDS = 40.0  # an older answer is not about now, unless nothing has moved since
LATE_SECONDS = 8.0  # RAS takes so long to answer: until then after a restart, it may have been asked before
LONGEST_APART = 10_000  # sequence numbers that are further apart are not of one group
# Calls whose tensors must be of one size in every rank; of the others, sizes may differ by design or by rank.
SAME_SIZE = frozenset(
    "all_reduce allreduce_coalesced broadcast reduce _all_gather_base all_gather_into_tensor _reduce_scatter_base"
    " reduce_scatter_tensor all_gather_single reduce_scatter_single all_reduce_barrier".split()
)
ASKED_BY = frozenset({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "PERFWATCH_AGENT_DIR"})  # a recorder that can be asked
_PARTNERS = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})\b")

GroupKey = tuple[str, tuple[int, ...]]  # name and ranks: older versions of torch give all groups of one split one name
Dump = Seen[RecordedGroup]
Answer = Seen[r.Communicator]
Edges = dict[int, tuple[int, ...]]  # by rank, the ranks that it waits for


@dataclass(frozen=True)
class Seat:
    """One rank's place in one group. ``rank`` is that in the whole job, if known; ``pid`` is that of a process on this host."""

    rank: int | None
    pid: int | None
    reached: int  # calls that it has made
    host: str = ""
    state: str = "running"
    launched: tuple[tuple[str, int], ...] = ()  # by kind, where RAS tells: those that it has made at all

    @property
    def name(self) -> str:
        """``rank 3 on node-2``."""
        where = "" if self.pid is not None or not self.host else f" on {self.host}"
        return f"rank {self.rank}{where}" if self.rank is not None else f"a rank{where}"


@dataclass(frozen=True)
class Standing:
    """A group whose counts have stood for ``seconds``. ``behind`` and ``ahead`` are empty where all are level."""

    group: str
    source: str  # nccl_ras or flight_recorder
    at: float  # of the last answer
    seconds: float  # between the answers that agree, and from then on for as long as nothing has moved
    looks_seconds: float  # of these, the time between the answers
    seats: tuple[Seat, ...]
    behind: tuple[Seat, ...] = ()
    ahead: tuple[Seat, ...] = ()
    operation: str = ""  # what those ahead wait in, where it is known
    frame: r.Frame | None = None  # from where it was called
    lost: tuple[Seat, ...] = ()  # members that the service cannot reach any more
    crossed: bool = False  # some are ahead in one kind of call, others in another

    @property
    def reach(self) -> str:
        """``rank 0 at 3212, rank 1 at 3193``."""
        return ", ".join(f"{seat.name} at {seat.reached}" for seat in self.seats[:SHOWN])

    def unchanged(self, at: float) -> str:
        """For how long the counts have stood, how old the newest answer is, and why it still holds."""
        ago = at - self.at
        old = f"{duration(ago)} ago" if ago >= OLD_SECONDS else ""
        since = ", and no rank has moved since" if self.seconds > self.looks_seconds else ""
        if self.looks_seconds < APART_SECONDS:
            return f"asked {old or 'just now'}{since}"
        return f"unchanged for {duration(self.looks_seconds)}{f' when last asked, {old}' if old else ''}{since if old else ''}"


@dataclass(frozen=True)
class Disagreement:
    """One sequence number of one group that means different calls. ``what``: operation, size or dtype."""

    group: str
    sequence: int
    what: str
    calls: tuple[tuple[int, int, Operation], ...]  # rank, pid, call
    at: float
    over: bool  # every rank has got past it: the data was mixed up, and training went on


@once
def standings(case: Case) -> list[Standing]:
    """Every group whose counts stand, by either source: the recorders first, which also know the operation."""
    return [*_recorded(case), *_by_ras(case)]


def counted_apart(case: Case) -> Standing | None:
    """The group whose ranks RAS counts in different calls, while no rank of this host made a step."""
    clocks = [case.progress[rank.pid].steps for rank in case.ranks]
    stepped = min((one.ago_seconds for one in clocks if one is not None and one.ago_seconds is not None), default=inf)
    return next((one for one in standings(case) if one.crossed and stepped >= one.seconds), None)


@once
def growing(case: Case) -> bool:
    """True if counts grew between RAS' last two answers about any group: then the job goes on."""
    return any(_counts(one[-1]) != _counts(one[-2]) for one in _counted(case) if len(one) > 1)


def never_called(case: Case) -> bool:
    """True if RAS has answered for every group, and no rank has ever called a collective in any of them."""
    newest = [answers[-1].reading for answers in _counted(case) if answers[-1].reading.source == "json"]
    counts = [count for one in newest for member in one.members for count in member.launched.values()]
    return bool(counts) and not any(counts)


def unanswered(case: Case) -> tuple[Evidence, ...]:
    """RAS listens and does not answer, if it was asked lately: its process is stopped, or has no time to run."""
    call = case.history.latest(r.ProbeCall, "nccl_ras", "job")
    if call is None or case.at - call.at > STALE_SECONDS or not call.reading.reason.endswith(UNANSWERED):
        return ()
    said = f"no greeting: {call.reading.reason}"
    return (case.saw("nccl_ras", "job", "the job's own RAS service is silent", said, "it greets within 1 ms", call.at),)


def recorder_owes(case: Case) -> bool:
    """True if a rank has a recorder that can be asked, and neither an answer nor a refusal has come yet.

    Not in a recording that several hosts sent: no rank is asked any more.
    """
    told = any(probe == "flight_recorder" for probe, _ in case.history.entities(r.ProbeCall))
    if told or case.merged:
        return False
    return any(ASKED_BY.intersection(rank.process.environment) for rank in case.ranks)


def shown(operation: Operation) -> str:
    """``all_reduce 3199 of Float 7087872``."""
    of = f" of {operation.dtypes} {operation.input_sizes or operation.output_sizes}" if operation.input_sizes else ""
    return f"{operation.name} {operation.sequence}{of[:80]}"


# What the recorders say


@once
def recorded_groups(case: Case) -> dict[GroupKey, list[Dump]]:
    """By group, the newest dump of each living rank in it, in rank order, without those that have not answered since."""
    groups: dict[GroupKey, list[Dump]] = defaultdict(list)
    for pid, group in case.history.entities(RecordedGroup):
        series = _fresh(case, case.history.series(RecordedGroup, pid, group))
        member = case.job.members.get(pid)
        if series and (member is None or member.alive):
            groups[group, series[-1].reading.members].append(series[-1])
    for key, dumps in groups.items():
        newest = max(one.at for one in dumps)
        in_round = (one for one in dumps if newest - one.at <= OLD_SECONDS)
        groups[key] = sorted(in_round, key=lambda one: one.reading.rank)
    return groups


def stood_seconds(case: Case, dumps: list[Dump]) -> float:
    """For how long no rank's sequence number in a group has changed.

    Two dumps of each show it, or one that was written on a timeout, or one since which nothing has moved.
    """
    return min((_unchanged_seconds(case, one) + _since(case, one.at) for one in dumps), default=0.0)


def recorded_standing(group: str, dumps: list[Dump], seconds: float, looks: float) -> Standing:
    """What the dumps of all members of a group say of it, which has stood for so long."""
    told = sorted((one.reading for one in dumps), key=lambda one: one.rank)
    seats = {one.rank: Seat(one.rank, one.pid, one.enqueued or 0) for one in told}
    least, most = min(one.reached for one in seats.values()), max(one.reached for one in seats.values())
    apart = 0 < most - least <= LONGEST_APART
    ahead = {rank: seat for rank, seat in seats.items() if apart and seat.reached > least}
    calls = (call for one in dumps if one.reading.rank in ahead for call in one.reading.operations)
    awaited = next((call for call in calls if call.sequence == least + 1 and not call.point_to_point), None)
    return Standing(
        group=_described(dumps, group),
        source="flight_recorder",
        at=max(one.at for one in dumps),
        seconds=seconds,
        looks_seconds=looks,
        seats=tuple(seats.values()),
        behind=tuple(seat for rank, seat in seats.items() if apart and rank not in ahead),
        ahead=tuple(ahead.values()),
        operation=shown(awaited) if awaited is not None else f"operation {least + 1}" if apart else "",
        frame=awaited.frames[0] if awaited is not None and awaited.frames else None,
    )


def _recorded(case: Case) -> Iterator[Standing]:
    """Groups of which every member's recorder was read, and says the same as before."""
    for (group, _), dumps in recorded_groups(case).items():
        told = [one for one in dumps if one.reading.enqueued is not None]
        seconds = stood_seconds(case, told)
        if len(told) < 2 or len(told) < len(told[0].reading.members) or seconds < APART_SECONDS:
            continue
        yield recorded_standing(group, told, seconds, min(_unchanged_seconds(case, one) for one in told))


def _described(dumps: list[Dump], group: str) -> str:
    return next((one.reading.description for one in dumps if one.reading.description), group)


def _unchanged_seconds(case: Case, last: Dump) -> float:
    """For how long a rank's sequence number has stood. A dump that it wrote on a timeout is about a moment of standing."""
    reading = last.reading
    if reading.origin == "file":
        return 0.0 if _is_outdated(case, last) else max(APART_SECONDS, reading.written_ago_seconds)
    since = last.at
    for one in reversed(case.history.series(RecordedGroup, reading.pid, reading.group)):
        if _reach(one.reading) != _reach(reading):
            break
        since = one.at
    return last.at - since


def _reach(group: RecordedGroup) -> tuple[object, ...]:
    """What changes when a rank goes on in a group: its collectives, or what it sends."""
    sends = tuple((one.order, one.state) for one in group.operations if one.point_to_point)
    return group.enqueued, group.completed, sends


@once
def disagreement(case: Case) -> Disagreement | None:
    """The newest one that is still open, else the newest of all; None where the ranks agree as far as was recorded."""
    found: list[Disagreement] = []
    for (group, _), dumps in recorded_groups(case).items():
        by_sequence: dict[int, list[tuple[int, int, Operation]]] = defaultdict(list)
        for one in dumps:
            for operation in one.reading.operations:
                if not operation.point_to_point:
                    by_sequence[operation.sequence].append((one.reading.rank, one.reading.pid, operation))
        for sequence, calls in sorted(by_sequence.items()):
            what = _differs([operation for _, _, operation in calls])
            over = all(operation.state == "completed" for _, _, operation in calls)
            if what and (over or not any(_is_outdated(case, one) for one in dumps)):
                at = max(one.at for one in dumps)
                found.append(Disagreement(_described(dumps, group), sequence, what, tuple(calls), at, over))
    return next((one for one in found if not one.over), found[-1] if found else None)


def _differs(calls: list[Operation]) -> str:
    if len({call.name for call in calls}) > 1:
        return "operation"
    if len({call.dtypes for call in calls if call.dtypes}) > 1:
        return "dtype"
    if calls[0].name in SAME_SIZE and len({call.input_elements for call in calls}) > 1:
        return "size"
    return ""


def _is_outdated(case: Case, dump: Dump) -> bool:
    """True if a dump that was found as a file is of a moment after which the job went on; not only a timeout writes one."""
    return dump.reading.origin == "file" and _went_on_at(case) > dump.at - dump.reading.written_ago_seconds


@once
def _went_on_at(case: Case) -> float:
    """When a rank was last known to make a step, or RAS to have counted a call before it counted more."""
    last = -inf
    for one in case.progress.values():
        if one.kind == "moving":
            return case.at
        if one.steps is not None and one.steps.ago_seconds is not None:
            last = max(last, case.at - one.steps.ago_seconds)
    for key in case.history.entities(r.Communicator):
        for earlier, later in pairwise(case.history.series(r.Communicator, *key)):
            before = dict(_counts(earlier))
            if any(before.get(rank, launched) != launched for rank, launched in _counts(later)):
                last = max(last, earlier.at)
    return last


# What RAS says


def _by_ras(case: Case) -> Iterator[Standing]:
    for answers in _counted(case):
        last = answers[-1]
        since = last.at
        for one in reversed(answers):
            if _counts(one) != _counts(last):
                break
            since = one.at
        if last.at - since < APART_SECONDS or not _counts(last):
            continue
        found = _ras_standing(case, last, last.at - since)
        if found.behind or found.lost or _is_used(case, found):
            yield found


def _is_used(case: Case, level: Standing) -> bool:
    """True if the silence of a group in which all are level means anything.

    RAS does not count what two ranks send each other, and not every group is used in each step.
    """
    if not any(seat.reached for seat in level.seats):
        return False
    since = level.at - level.looks_seconds
    for rank in case.ranks:
        counts = [one.reading.count for one in case.history.series(r.Steps, rank.pid) if since <= one.at <= level.at]
        if counts and counts[-1] - counts[0] >= TWICE:  # it makes its steps without that group
            return False
    return True


def _ras_standing(case: Case, seen: Answer, seconds: float) -> Standing:
    communicator = seen.reading
    told = [member for member in communicator.members if member.launched]
    behind: set[int] = set()
    ahead: set[int] = set()
    late_in: list[str] = []
    crossed = False
    for kind in sorted({name for member in told for name in member.launched}):
        counts = {member.rank: member.launched[kind] for member in told if kind in member.launched}
        late = {rank for rank, count in counts.items() if count < max(counts.values())}
        if late:
            first = counts.keys() - late
            crossed = crossed or bool(late & ahead or first & behind)
            behind, ahead = behind | late, ahead | first
            late_in.append(_snake(kind))
    hosts = {member.host for member in communicator.members if member.local}
    whole = _has_all_ranks(case, communicator, hosts)
    seats = {member.rank: _seat(case, member, whole, member.host in hosts) for member in communicator.members}
    # the first call that those behind lack, numbered as torch does it: over all kinds that a group has called
    number = "" if crossed or not behind else f" {min(seats[rank].reached for rank in behind) + 1}"
    return Standing(
        group=communicator.communicator,
        source="nccl_ras",
        at=seen.at,
        seconds=seconds + _since(case, seen.at),
        looks_seconds=seconds,
        seats=tuple(seats.values()),
        behind=tuple(seats[rank] for rank in sorted(behind)),
        ahead=tuple(seats[rank] for rank in sorted(ahead)),
        operation=" or ".join(late_in[: 1 if crossed else None]) + number,
        lost=tuple(seats[member.rank] for member in communicator.members if member.state in UNHEARD),
        crossed=crossed,
    )


def _has_all_ranks(case: Case, communicator: r.Communicator, hosts: Collection[str]) -> bool:
    """True if it is the group of all ranks: as large as the job, and if all its processes are known, without any other.

    Trainers share a communicator with the engine that they send their weights to, and that has one of its own.
    """
    if case.job.world_size is None or communicator.size != case.job.world_size:
        return False
    told = [member for member in communicator.members if member.pid is not None and member.state not in UNHEARD]
    if not case.job.covered or not told:
        return True
    return bool(hosts) and all(member.local or member.host not in hosts for member in told)


def _seat(case: Case, member: r.GroupMember, whole: bool, here: bool) -> Seat:
    known = case.job.members.get(member.pid) if member.local and member.pid is not None else None
    if member.pid is None and whole:  # the text does not say whose the ranks are that are most
        known = next((one for one in case.job.ranks if one.rank == member.rank), None)
    rank = known.rank if known is not None and known.rank is not None else member.rank if whole else None
    return Seat(
        rank=rank,
        pid=known.pid if known is not None else None,
        reached=sum(member.launched.values()),
        launched=tuple((_snake(kind), count) for kind, count in member.launched.items() if count),
        host="" if here else member.host,
        state=member.state,
    )


@once
def _counted(case: Case) -> list[list[Answer]]:
    """RAS' answers about each group that still exists, if they are about now.

    RAS names a communicator for as long as one of its processes has it. What it said of one that is gone would otherwise be believed
    until it is old: after an elastic restart, or where a program has ended a group that stood. The text names a group only while
    its ranks' counts differ: one that a newer answer does not name has caught up. The JSON names every group of every process, but
    where the answers of several hosts are joined: of a large group those of one host are kept, and of others all.
    """
    told = [case.history.series(r.Communicator, *key) for key in case.history.entities(r.Communicator)]
    newest, begun = max((answers[-1].at for answers in told), default=0.0), _restarted_at(case)
    complete = sorted((one[-1] for one in told if one[-1].reading.source == "json"), key=lambda one: one.at)
    joined = len({member.host for one in complete for member in one.reading.members if member.local}) > 1
    heard = {place: one.at for one in complete for place in _places(one.reading) if not joined}

    def unnamed_seconds(last: Answer) -> float:
        if last.reading.source != "json":
            return newest - last.at
        return max((heard.get(place, last.at) - last.at for place in _places(last.reading)), default=0.0)

    about_now = (one for one in told if one[-1].at > begun and unnamed_seconds(one[-1]) < APART_SECONDS)
    return [answers for answers in about_now if _fresh(case, answers)]


def _places(communicator: r.Communicator) -> list[tuple[str, int]]:
    """Host and pid of the members that RAS hears."""
    return [(one.host, one.pid) for one in communicator.members if one.pid is not None and one.state not in UNHEARD]


def _restarted_at(case: Case) -> float:
    """Until when an answer may be about ranks that were replaced since; before all time where none was."""
    now = {rank.rank: rank.process for rank in case.job.ranks if rank.rank is not None}
    replaced = (
        ended.at + LATE_SECONDS
        for member in case.job.members.values()
        if member.role == "rank"
        and not member.alive
        and member.rank is not None
        and (member.rank not in now or now[member.rank].start_ticks > member.process.start_ticks)
        and (ended := case.history.latest(r.ProcessEnded, member.pid)) is not None
    )
    return max(replaced, default=-inf)


def _since(case: Case, at: float) -> float:
    """How long ago an answer was, if nothing has moved since: what it showed still holds."""
    return case.at - at if unmoved_since(case, at) and not growing(case) else 0.0


def _fresh(case: Case, series: list[Seen[R]]) -> list[Seen[R]]:
    """The newest answer and those shortly before it, if it is about now."""
    if not series or (case.at - series[-1].at > STALE_SECONDS and not unmoved_since(case, series[-1].at)):
        return []
    return [one for one in series if series[-1].at - one.at <= STALE_SECONDS]


def _counts(answer: Answer) -> tuple[tuple[int, tuple[tuple[str, int], ...]], ...]:
    """By rank, of those that are heard: how often each kind of call was made."""
    return tuple((m.rank, tuple(sorted(m.launched.items()))) for m in answer.reading.members if m.launched)


def _snake(name: str) -> str:
    """``AllReduce`` -> ``all_reduce``, as torch calls it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


# Which rank waits for which, through all groups at once


@dataclass(frozen=True)
class WaitGraph:
    """Edges between ranks of the whole job. ``calls``: what each waiting rank is in."""

    edges: Edges
    seats: dict[int, Seat]
    calls: dict[int, str]
    frames: dict[int, r.Frame]
    standings: tuple[Standing, ...]
    source: str
    seconds: float
    _unnamed: tuple[Seat, ...] = ()

    @property
    def recorded(self) -> bool:
        """True if the flight recorders say so, and not RAS' counts."""
        return self.source == "flight_recorder"

    @property
    def together(self) -> bool:
        """True if the recorders show every rank in one and the same call."""
        in_calls = self.recorded and len(self.calls) == len(self.seats) > 1
        return in_calls and not self.edges and len(set(self.calls.values())) == 1

    @property
    def level(self) -> bool:
        """True if RAS counts as many calls in every rank of each group, and none advances."""
        return not self.recorded and len(self.seats) > 1 and not any(one.behind for one in self.standings)

    @property
    def ends(self) -> tuple[Seat, ...]:
        """Ranks that others wait for and that wait for no other: the culprits."""
        return (
            *(self.seats[rank] for rank in sorted(_targets(self.edges)) if not self.edges.get(rank)),
            *self._unnamed,
        )

    @property
    def cycle(self) -> tuple[int, ...]:
        """Ranks that wait for each other in a ring, in order; empty where there is none, or a rank is at the end of it all."""
        if self.ends or not self.edges:
            return ()
        path: list[int] = []
        here = min(self.edges)
        while here not in path:
            path.append(here)
            here = self.edges[here][0]
        return tuple(path[path.index(here) :])

    def evidence(self, case: Case) -> tuple[Evidence, ...]:
        """One piece for each group that does not go on."""
        unlike = [one for one in self.standings if one.behind] or list(self.standings)
        counts = "its ranks have not called equally often, and none advances"
        claim = counts if any(one.behind for one in unlike) else "none of its ranks advances"
        return tuple(
            case.saw(
                one.source, f"group {one.group}", claim, f"{one.reach}, {one.unchanged(case.at)}", "counts grow", one.at
            )
            for one in unlike[:FEW]
        )


@once
def wait_graph(case: Case) -> WaitGraph | None:
    """The ranks that wait for each other now; None where nothing stands still, or neither source tells."""
    return _by_records(case) or _by_counts(standings(case))


def exchanging(case: Case) -> bool:
    """True if some rank's oldest recorded call that is not over is a send or a receive."""
    return any(operation.point_to_point for _, operation in _Records(_dumps(case)).oldest.values())


def why_in_a_ring(names: list[str]) -> str:
    """How it comes that the ranks in these calls wait for each other in a ring."""
    kinds = {match[1] if (match := _PARTNERS.match(name)) else "" for name in names}
    if kinds == {"send"}:
        return "each sends first, and the one that it sends to does not receive"
    if kinds == {"recv"}:
        return "each receives first, and none of them sends"
    return "one makes an extra call, or calls in another order"


def _dumps(case: Case) -> list[Dump]:
    return [one for members in recorded_groups(case).values() for one in members]


def _by_records(case: Case) -> WaitGraph | None:
    dumps = _dumps(case)
    if not dumps or stood_seconds(case, dumps) < APART_SECONDS:
        return None
    records = _Records(dumps)
    oldest, edges = records.oldest, records.edges()
    with_sends = {**edges, **records.partners()}
    if _targets(with_sends) <= with_sends.keys():  # a ring; else a stage of a pipeline may just wait for its neighbour
        edges = with_sends
    targets = _targets(edges)
    seats = {
        one.rank: Seat(one.rank, one.pid, 0, state="dead")  # it writes no dump any more
        for one in case.job.ranks
        if not one.alive and one.rank in targets
    }
    seats |= {one.reading.rank: Seat(one.reading.rank, one.reading.pid, one.reading.enqueued or 0) for one in dumps}
    if targets - set(seats):
        return None  # it is not known whether a rank has come whose recorder was not read
    return WaitGraph(
        edges=edges,
        seats=seats,
        calls={rank: shown(operation) for rank, (_, operation) in oldest.items()},
        frames={rank: operation.frames[0] for rank, (_, operation) in oldest.items() if operation.frames},
        standings=tuple(standings(case)),
        source="flight_recorder",
        seconds=stood_seconds(case, dumps),
    )


def _targets(edges: Edges) -> set[int]:
    return {rank for targets in edges.values() for rank in targets}


class _Records:
    """What the recorders show of every rank: its oldest call that is not over, over all its groups, and each group."""

    def __init__(self, dumps: list[Dump]) -> None:
        self.groups = {(one.reading.rank, one.reading.group): one.reading for one in dumps}
        pending: list[tuple[RecordedGroup, Operation]] = []
        for group in (
            one.reading for one in dumps
        ):  # calls of a batch never seem to be over, and the batch stands for them
            batch = max((one.order for one in group.operations if one.name == BATCH), default=-1)
            alone = (
                one for one in group.operations if not one.point_to_point or one.name == BATCH or one.order > batch
            )
            pending += [(group, one) for one in alone if one.state != "completed"]
        pending.sort(key=lambda one: (one[0].rank, -one[1].order))
        self.oldest = {group.rank: (group, call) for group, call in pending}

    def edges(self) -> Edges:
        """By rank, which ranks have not come to the call that it is in. Those in one call wait for the same: they are sought once."""
        edges: Edges = {}
        absent: dict[tuple[str, int, tuple[int, ...]], tuple[int, ...]] = {}
        for rank, (group, operation) in self.oldest.items():
            if operation.point_to_point:
                continue
            call = (group.group, operation.sequence, group.members)
            if call not in absent:
                absent[call] = tuple(one for one in group.members if not self._has_come(one, *call[:2]))
            if waited_for := tuple(one for one in absent[call] if one != rank):
                edges[rank] = waited_for
        return edges

    def _has_come(self, member: int, group: str, sequence: int) -> bool:
        """True if a member is in that call, or past it. One that has called it but is still in an earlier call has not come."""
        there, busy = self.groups.get((member, group)), self.oldest.get(member)
        if there is None or (there.completed or 0) >= sequence:
            return there is not None
        if (there.enqueued or 0) < sequence:
            return False
        if busy is None or busy[1].point_to_point:
            return busy is None  # sends have numbers of their own
        return (busy[0].group, busy[1].sequence) == (group, sequence)

    def partners(self) -> Edges:
        """By rank, which one it waits for in a send or receive; only of ranks that are all in calls, and have made no batches."""
        if any(operation.name == BATCH for record in self.groups.values() for operation in record.operations):
            return {}
        found: Edges = {}
        for rank, (group, operation) in self.oldest.items():
            kind, other = _partner(group, operation) or ("", -1)
            if other in self.oldest:
                theirs = _partner(*self.oldest[other])
                taken = kind == "recv" and not self._not_sent(operation, group, other)
                if not taken and theirs != ({"send": "recv", "recv": "send"}[kind], rank):
                    found[rank] = (other,)
        return found

    def _not_sent(self, operation: Operation, group: RecordedGroup, other: int) -> bool:
        """True if the other of two ranks is known to have called something else under the number of a receive."""
        there = self.groups.get((other, group.group))
        if there is None or len(group.members) != 2:
            return False
        same = [one for one in there.operations if one.point_to_point and one.sequence == operation.sequence]
        return len(same) == 1 and _partner(there, same[0]) == ("recv", group.rank)


def _partner(group: RecordedGroup, operation: Operation) -> tuple[str, int] | None:
    """``send`` or ``recv``, and the rank of the whole job at the other end; a recorder counts ranks within the group."""
    match = _PARTNERS.match(operation.name) if operation.point_to_point else None
    if match is None or int(match[3]) >= len(group.members):
        return None
    return match[1], group.members[int(match[3])]


def _by_counts(still: list[Standing]) -> WaitGraph | None:
    if not still:
        return None
    edges: Edges = {}
    seats: dict[int, Seat] = {}
    calls: dict[int, str] = {}
    frames: dict[int, r.Frame] = {}
    unnamed: list[Seat] = []
    for one in still:
        seats |= {seat.rank: seat for seat in one.seats if seat.rank is not None}
        awaited = (*one.behind, *one.lost)
        unnamed += [seat for seat in awaited if seat.rank is None]
        late = tuple(seat.rank for seat in awaited if seat.rank is not None)
        for seat in one.ahead or (one.seats if one.lost else ()):
            if seat.rank is None or seat.rank in late:
                continue
            edges[seat.rank] = tuple(dict.fromkeys((*edges.get(seat.rank, ()), *late)))
            calls.setdefault(seat.rank, one.operation)
            if one.frame is not None:
                frames.setdefault(seat.rank, one.frame)
    return WaitGraph(
        edges={rank: targets for rank, targets in edges.items() if targets},
        seats=seats,
        calls=calls,
        frames=frames,
        standings=tuple(still),
        source=still[0].source,
        seconds=min(one.seconds for one in still),
        _unnamed=tuple(unnamed),
    )


# Whether what was asked a while ago still holds

GAP_SECONDS = 20.0  # between two looks at a thread: after a hang was told, its stack is looked at every 15 s
AT_WORK = ("work", "wait")  # what a card does whose kernels come and go


@dataclass
class _Known:
    """What was found out so far: asked about the dumps of thousands of ranks, each of its own moment, it is not asked anew."""

    since: float = inf  # the earliest moment since which nothing has moved
    mover: int | None = None  # the rank that had moved, last time


def unmoved_since(case: Case, at: float) -> bool:
    """True if every rank of the job is here, was looked at since that moment, and has neither moved nor made a step.

    Since an earlier moment is more than since a later one, and who has moved since one has mostly done so since the next.
    """
    if not case.ranks or not case.job.covered:
        return False
    known = case.history.once(("unmoved",), _Known)
    if at >= known.since:
        return True
    first = [known.mover] if known.mover is not None else []
    known.mover = next((pid for pid in (*first, *(one.pid for one in case.ranks)) if not _unmoved(case, pid, at)), None)
    if known.mover is None:
        known.since = at
    return known.mover is None


def _unmoved(case: Case, pid: int, at: float) -> bool:
    progress = case.progress[pid]
    steps, tid = progress.steps, progress.thread
    if progress.kind == "moving" or (
        steps is not None and steps.ago_seconds is not None and case.at - steps.ago_seconds > at
    ):
        return False
    if any((card.kind in AT_WORK and not card.polls) or card.computes for card in regimes(case.history, pid)):
        return False
    stacks = [one for one in case.history.series(r.Stack, pid, tid, seconds=case.at - at) if one.reading.frames]
    weights = weights_of(stacks)
    total = weights.total()
    if total - max(weights.values(), default=0) > TORN_SHARE * total:
        return False  # all but one together: of many lines in turn each alone is rare
    threads = case.history.series(r.Thread, pid, tid, seconds=case.at - at)
    # Of one that spins for its card, the time that it runs says nothing; of one that sleeps, that it went on.
    if threads and threads[-1].reading.state != "R" and threads[-1].reading.wait is not None:
        moved = moves(case.history, pid, tid).ago_seconds
        if moved is not None and case.at - moved > at:
            return False
    looks = sorted((at, *(one.at for one in stacks), *(one.at for one in threads), case.at))
    return len(looks) > 2 and all(later - earlier <= GAP_SECONDS for earlier, later in pairwise(looks))
