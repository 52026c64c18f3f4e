"""Process groups as NCCL's RAS service and torch's flight recorders count them: who has made how many calls, and who waits for whom.

Counts are of launches: ranks of a healthy job are a few calls apart, and no two ranks are read at one moment. So only counts that are
the same in two answers are compared, and only within one group: the stages of a pipeline differ by design.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from perfwatch.triage.case import Case
from perfwatch.triage.history import R, Seen
from perfwatch.triage.moving.unmoved import unmoved_since
from perfwatch.triage.ranks.thresholds import APART_SECONDS, SHOWN
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r
from perfwatch_probes.readings import UNANSWERED

UNHEARD = ("dead", "unresponsive", "missing")  # states of a member that RAS does not reach
OLD_SECONDS = 3.0  # an answer that is older is called so; ranks that are asked together answer within it
STALE_SECONDS = 40.0  # an older answer is not about now, unless nothing has moved since
LATE_SECONDS = 8.0  # RAS takes so long to answer: until then after a restart, it may have been asked before
MEANWHILE = 2  # steps that a rank made while a group's counts stood: it makes its steps without that group
LONGEST_APART = 10_000  # sequence numbers that are further apart are not of one group
# Calls whose tensors must be of one size in every rank; of the others, sizes may differ by design or by rank.
SAME_SIZE = frozenset(
    "all_reduce allreduce_coalesced broadcast reduce _all_gather_base all_gather_into_tensor _reduce_scatter_base"
    " reduce_scatter_tensor all_gather_single reduce_scatter_single all_reduce_barrier".split()
)
ASKED_BY = frozenset({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "PERFWATCH_AGENT_DIR"})  # a recorder that can be asked

GroupKey = tuple[str, tuple[int, ...]]  # name and ranks: older versions of torch give all groups of one split one name
Dump = Seen[r.RecordedGroup]
Answer = Seen[r.Communicator]


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
        old = f"{ago:.1f} s ago" if ago >= OLD_SECONDS else ""
        since = ", and no rank has moved since" if self.seconds > self.looks_seconds else ""
        if self.looks_seconds < APART_SECONDS:
            return f"asked {old or 'just now'}{since}"
        return (
            f"unchanged for {self.looks_seconds:.1f} s{f' when last asked, {old}' if old else ''}{since if old else ''}"
        )


@dataclass(frozen=True)
class Disagreement:
    """One sequence number of one group that means different calls. ``what``: operation, size or dtype."""

    group: str
    sequence: int
    what: str
    calls: tuple[tuple[int, int, r.Operation], ...]  # rank, pid, call
    at: float
    over: bool  # every rank has got past it: the data was mixed up, and training went on


def standings(case: Case) -> list[Standing]:
    """Every group whose counts stand, by either source: the recorders first, which also know the operation."""
    return case.history.once(("standings",), lambda: [*_recorded(case), *_by_ras(case)])


def counted_apart(case: Case) -> Standing | None:
    """The group whose ranks RAS counts in different calls, while no rank of this host made a step."""
    for one in standings(case):
        if one.crossed and not any(_stepped(case, rank.pid, one.seconds) for rank in case.ranks):
            return one
    return None


def disagreement(case: Case) -> Disagreement | None:
    """The newest one that is still open, else the newest of all; None where the ranks agree as far as was recorded."""
    return case.history.once(("disagreement",), lambda: _disagreement(case))


def growing(case: Case) -> bool:
    """True if counts grew between RAS' last two answers about any group: then the job goes on."""
    return case.history.once(
        ("growing",), lambda: any(_counts(one[-1]) != _counts(one[-2]) for one in _counted(case) if len(one) > 1)
    )


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


def shown(operation: r.Operation) -> str:
    """``all_reduce 3199 of Float 7087872``."""
    of = f" of {operation.dtypes} {operation.input_sizes or operation.output_sizes}" if operation.input_sizes else ""
    return f"{operation.name} {operation.sequence}{of[:80]}"


# What the recorders say


def recorded_groups(case: Case) -> dict[GroupKey, list[Dump]]:
    """By group, the newest dump of each living rank in it, in rank order, without those that have not answered since."""
    return case.history.once(("recorded_groups",), lambda: _recorded_groups(case))


def stood_seconds(case: Case, dumps: list[Dump]) -> float:
    """For how long no rank's sequence number in a group has changed.

    Two dumps of each show it, or one that was written on a timeout, or one since which nothing has moved.
    """
    return min((_unchanged_seconds(case, one) + _since(case, one.at) for one in dumps), default=0.0)


def recorded_standing(group: str, dumps: list[Dump], seconds: float, looks: float) -> Standing:
    """What the dumps of all members of a group say of it, which has stood for so long."""
    reached = {one.reading.rank: one.reading.enqueued or 0 for one in dumps}
    least, most = min(reached.values()), max(reached.values())
    seats = {one.reading.rank: Seat(one.reading.rank, one.reading.pid, reached[one.reading.rank]) for one in dumps}
    apart = 0 < most - least <= LONGEST_APART
    ahead = [rank for rank, count in reached.items() if count > least] if apart else []
    waits = (
        operation
        for one in dumps
        if one.reading.rank in ahead
        for operation in one.reading.operations
        if operation.sequence == least + 1 and not operation.point_to_point
    )
    operation = next(waits, None)
    return Standing(
        group=_described(dumps, group),
        source="flight_recorder",
        at=max(one.at for one in dumps),
        seconds=seconds,
        looks_seconds=looks,
        seats=tuple(seats[rank] for rank in sorted(seats)),
        behind=tuple(seats[rank] for rank in sorted(reached) if apart and reached[rank] == least),
        ahead=tuple(seats[rank] for rank in sorted(ahead)),
        operation=shown(operation) if operation is not None else f"operation {least + 1}" if apart else "",
        frame=operation.frames[0] if operation is not None and operation.frames else None,
    )


def _recorded_groups(case: Case) -> dict[GroupKey, list[Dump]]:
    groups: dict[GroupKey, list[Dump]] = {}
    for pid, group in case.history.entities(r.RecordedGroup):
        series = _fresh(case, case.history.series(r.RecordedGroup, pid, group))
        member = case.job.members.get(pid)
        if series and (member is None or member.alive):
            groups.setdefault((group, series[-1].reading.members), []).append(series[-1])
    for key, dumps in groups.items():
        newest = max(one.at for one in dumps)
        in_round = (one for one in dumps if newest - one.at <= OLD_SECONDS)
        groups[key] = sorted(in_round, key=lambda one: one.reading.rank)
    return groups


def _recorded(case: Case) -> Iterator[Standing]:
    """Groups of which every member's recorder was read, and says the same as before."""
    for (group, _), dumps in recorded_groups(case).items():
        told = [one for one in dumps if one.reading.enqueued is not None]
        seconds = stood_seconds(case, told)
        if len(told) < 2 or len(told) < len(told[0].reading.members) or seconds < APART_SECONDS:
            continue
        yield recorded_standing(group, told, seconds, min(_unchanged_seconds(case, one) for one in told))


def _described(dumps: Iterable[Dump], group: str) -> str:
    return next((one.reading.description for one in dumps if one.reading.description), group)


def _unchanged_seconds(case: Case, last: Dump) -> float:
    """For how long a rank's sequence number has stood. A dump that it wrote on a timeout is about a moment of standing."""
    reading = last.reading
    if reading.origin == "file":
        return 0.0 if _is_outdated(case, last) else max(APART_SECONDS, reading.written_ago_seconds)
    since = last.at
    for one in reversed(case.history.series(r.RecordedGroup, reading.pid, reading.group)):
        if _reach(one.reading) != _reach(reading):
            break
        since = one.at
    return last.at - since


def _reach(group: r.RecordedGroup) -> tuple[object, ...]:
    """What changes when a rank goes on in a group: its collectives, or what it sends."""
    sends = tuple((one.order, one.state) for one in group.operations if one.point_to_point)
    return group.enqueued, group.completed, sends


def _disagreement(case: Case) -> Disagreement | None:
    found: list[Disagreement] = []
    for (group, _), dumps in recorded_groups(case).items():
        by_sequence: dict[int, list[tuple[int, int, r.Operation]]] = {}
        for one in dumps:
            for operation in one.reading.operations:
                if not operation.point_to_point:
                    place = (one.reading.rank, one.reading.pid, operation)
                    by_sequence.setdefault(operation.sequence, []).append(place)
        for sequence, calls in sorted(by_sequence.items()):
            what = _differs([operation for _, _, operation in calls])
            over = all(operation.state == "completed" for _, _, operation in calls)
            if what and (over or not any(_is_outdated(case, one) for one in dumps)):
                at = max(one.at for one in dumps)
                found.append(Disagreement(_described(dumps, group), sequence, what, tuple(calls), at, over))
    still = [one for one in found if not one.over]
    return still[0] if still else found[-1] if found else None


def _differs(calls: list[r.Operation]) -> str:
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


def _went_on_at(case: Case) -> float:
    """When a rank was last known to make a step, or RAS to have counted a call before it counted more."""
    return case.history.once(("went on",), lambda: max(_signs(case), default=-inf))


def _signs(case: Case) -> Iterator[float]:
    for one in case.progress.values():
        if one.kind == "moving":
            yield case.at
        elif one.steps is not None and one.steps.ago_seconds is not None:
            yield case.at - one.steps.ago_seconds
    for key in case.history.entities(r.Communicator):
        for earlier, later in pairwise(case.history.series(r.Communicator, *key)):
            before = dict(_counts(earlier))
            if any(before.get(rank, launched) != launched for rank, launched in _counts(later)):
                yield earlier.at


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
        if counts and counts[-1] - counts[0] >= MEANWHILE:
            return False
    return True


def _ras_standing(case: Case, seen: Answer, seconds: float) -> Standing:
    communicator = seen.reading
    told = [member for member in communicator.members if member.launched]
    behind: dict[int, int] = {}
    ahead: dict[int, int] = {}
    late_in: list[str] = []
    crossed = False
    for kind in sorted({name for member in told for name in member.launched}):
        counts = {member.rank: member.launched[kind] for member in told if kind in member.launched}
        most = max(counts.values())
        late = [rank for rank, count in counts.items() if count < most]
        if not late:
            continue
        first = [rank for rank, count in counts.items() if count == most]
        crossed = crossed or any(rank in ahead for rank in late) or any(rank in behind for rank in first)
        behind |= {rank: counts[rank] for rank in late}
        ahead |= dict.fromkeys(first, most)
        late_in.append(_snake(kind))
    hosts = {member.host for member in communicator.members if member.local}
    whole = _has_all_ranks(case, communicator, hosts)
    seats = {member.rank: _seat(case, member, whole, member.host in hosts) for member in communicator.members}
    return Standing(
        group=communicator.communicator,
        source="nccl_ras",
        at=seen.at,
        seconds=seconds + _since(case, seen.at),
        looks_seconds=seconds,
        seats=tuple(seats.values()),
        behind=tuple(seats[rank] for rank in sorted(behind)),
        ahead=tuple(seats[rank] for rank in sorted(ahead)),
        operation=_next_call(late_in, [seats[rank].reached for rank in behind], crossed),
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


def _next_call(kinds: list[str], reached: list[int], crossed: bool) -> str:
    """The first call that those behind lack, numbered as torch does it: over all kinds that a group has called."""
    if not kinds or crossed:
        return kinds[0] if kinds else ""
    return f"{' or '.join(kinds)} {min(reached) + 1}"


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


def _counted(case: Case) -> list[list[Answer]]:
    """RAS' answers about each group that still exists, if they are about now.

    RAS names a communicator for as long as one of its processes has it. What it said of one that is gone would otherwise be believed
    until it is old: after an elastic restart, or where a program has ended a group that stood. The text names a group only while
    its ranks' counts differ: one that a newer answer does not name has caught up. The JSON names every group of every process.
    """
    told = [case.history.series(r.Communicator, *key) for key in case.history.entities(r.Communicator)]
    newest, begun = max((answers[-1].at for answers in told), default=0.0), _restarted_at(case)
    heard = _heard(told)
    return [
        answers
        for answers in told
        if answers[-1].at > begun
        and _unnamed_seconds(answers[-1], heard, newest) < APART_SECONDS
        and _fresh(case, answers)
    ]


def _unnamed_seconds(last: Answer, heard: dict[tuple[str, int], float], newest: float) -> float:
    """For how long a group has not been named, while the processes that would name it were heard."""
    if last.reading.source != "json":
        return newest - last.at
    return max((heard.get(place, last.at) - last.at for place in _places(last.reading)), default=0.0)


def _heard(told: list[list[Answer]]) -> dict[tuple[str, int], float]:
    """By host and pid, when an answer in JSON last spoke for a process.

    Empty where the answers of several hosts are joined: of a large group those of one host are kept, and of others all.
    """
    newest = [answers[-1] for answers in told if answers[-1].reading.source == "json"]
    if len({member.host for one in newest for member in one.reading.members if member.local}) > 1:
        return {}
    found: dict[tuple[str, int], float] = {}
    for one in newest:
        for place in _places(one.reading):
            found[place] = max(one.at, found.get(place, one.at))
    return found


def _places(communicator: r.Communicator) -> Iterator[tuple[str, int]]:
    for member in communicator.members:
        if member.pid is not None and member.state not in UNHEARD:
            yield member.host, member.pid


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


def _stepped(case: Case, pid: int, seconds: float) -> bool:
    steps = case.progress[pid].steps
    return steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seconds
