"""Who is behind in which process group, as NCCL's RAS service and the flight recorders count it.

Counts are launches: a healthy job's ranks are a few apart, and two ranks are never read at the same moment. So only counts
that have stood still over two looks are compared, and always within one group: a pipeline's stages differ by design.
"""

from collections.abc import Collection, Iterable

from perfwatch.triage.case import Case
from perfwatch.triage.history import R, Seen
from perfwatch.triage.moving.unmoved import unmoved_since
from perfwatch.triage.ranks.lapsed import lasting, passed
from perfwatch.triage.ranks.standing import APART_SECONDS, UNHEARD, Seat, Standing
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r
from perfwatch_probes.readings import UNANSWERED

ROUND_SECONDS = 3.0  # ranks that were asked together answer so far apart at most
STALE_SECONDS = 40.0  # an older answer is not about now, unless nothing has moved since
MEANWHILE = 2  # steps that a rank made while a group's counts stood: it makes its steps without that group
ASKED_BY = frozenset({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "PERFWATCH_AGENT_DIR"})  # a recorder that can be asked
LONGEST_APART = 10_000  # sequence numbers of one group that are further apart are not of one group

GroupKey = tuple[
    str, tuple[int, ...]
]  # its name and its ranks: older versions of torch give all groups of one split one name


def standings(case: Case) -> list[Standing]:
    """Every group that stands still, by either source: the recorders first, which also know the operation."""
    return [*_recorded(case), *_by_ras(case)]


def growing(case: Case) -> bool:
    """Whether RAS saw counts grow between the last two answers about any group: then the job goes on."""
    return case.history.once(("growing",), lambda: _growing(case))


def _growing(case: Case) -> bool:
    for series in _counted(case):
        if len(series) >= 2 and _counts(series[-1].reading) != _counts(series[-2].reading):
            return True
    return False


def never_called(case: Case) -> bool:
    """Whether RAS has answered for every group, and no rank has ever called a collective in any of them."""
    newest = [series[-1].reading for series in _counted(case) if series[-1].reading.source == "json"]
    counts = [count for one in newest for member in one.members for count in member.launched.values()]
    return bool(counts) and not any(counts)


def unanswered(case: Case) -> tuple[Evidence, ...]:
    """RAS listens and greets nobody, as long as it was asked lately: its process is stopped, or has no time to run."""
    call = case.history.latest(r.ProbeCall, "nccl_ras", "job")
    if call is None or case.at - call.at > STALE_SECONDS or not call.reading.reason.endswith(UNANSWERED):
        return ()
    said = f"no greeting: {call.reading.reason}"
    return (case.saw("nccl_ras", "job", "the job's own RAS service is silent", said, "it greets within 1 ms", call.at),)


def _counted(case: Case) -> list[list[Seen[r.Communicator]]]:
    """What RAS said of each group that is there yet."""
    found = [case.history.series(r.Communicator, *key) for key in case.history.entities(r.Communicator)]
    return [series for series in lasting(case, found) if _fresh(case, series)]


def _by_ras(case: Case) -> Iterable[Standing]:
    for series in _counted(case):
        last = series[-1]
        since = last.at
        for one in reversed(series):
            if _counts(one.reading) != _counts(last.reading):
                break
            since = one.at
        if last.at - since < APART_SECONDS or not _counts(last.reading):
            continue
        found = _ras_standing(case, last, last.at - since)
        if found.behind or found.lost or _speaks(case, found):
            yield found


def _speaks(case: Case, level: Standing) -> bool:
    """Whether the silence of a group in which all are level means anything.

    What is not called does not grow: RAS does not count what two ranks send each other, and not every group is used in each step.
    """
    if not any(seat.reached for seat in level.seats):
        return False
    meanwhile = level.at - level.looks_seconds
    for rank in case.ranks:
        counts = [
            one.reading.count for one in case.history.series(r.Steps, rank.pid) if meanwhile <= one.at <= level.at
        ]
        if counts and counts[-1] - counts[0] >= MEANWHILE:
            return False
    return True


def _ras_standing(case: Case, seen: Seen[r.Communicator], seconds: float) -> Standing:
    communicator = seen.reading
    kinds = sorted({name for member in communicator.members for name in member.launched})
    told = [member for member in communicator.members if member.launched]
    behind: dict[int, int] = {}
    ahead: dict[int, int] = {}
    late_in: list[str] = []
    crossed = False
    for kind in kinds:
        counts = {member.rank: member.launched[kind] for member in told if kind in member.launched}
        most = max(counts.values(), default=0)
        late = [rank for rank, count in counts.items() if count < most]
        if not late:
            continue
        first = [rank for rank, count in counts.items() if count == most]
        crossed = crossed or any(rank in ahead for rank in late) or any(rank in behind for rank in first)
        behind |= {rank: counts[rank] for rank in late}
        ahead |= dict.fromkeys(first, most)
        late_in.append(_snake(kind))
    hosts = {member.host for member in communicator.members if member.local}
    whole = _is_whole(case, communicator, hosts)
    seats = {member.rank: _seat(case, member, whole, member.host in hosts) for member in communicator.members}
    lost = tuple(seats[m.rank] for m in communicator.members if m.state in UNHEARD)
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
        lost=lost,
        crossed=crossed,
    )


def _is_whole(case: Case, communicator: r.Communicator, hosts: Collection[str]) -> bool:
    """Whether it is the group of all ranks: as large as the job, and where we know all of these, without any other process.

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


def recorded_groups(case: Case) -> dict[GroupKey, list[Seen[r.RecordedGroup]]]:
    """By group, the newest dump of each rank in it, in rank order."""
    groups: dict[GroupKey, list[Seen[r.RecordedGroup]]] = {}
    for pid, group in case.history.entities(r.RecordedGroup):
        series = _fresh(case, case.history.series(r.RecordedGroup, pid, group))
        member = case.job.members.get(pid)
        if series and (member is None or member.alive):
            groups.setdefault((group, series[-1].reading.members), []).append(series[-1])
    return {group: _of_one_round(dumps) for group, dumps in groups.items()}


def recorder_owes(case: Case) -> bool:
    """Whether a rank has a recorder that can be asked, and neither an answer nor a refusal has come yet.

    Not in what several hosts have sent: their look is over, and nobody asks any more.
    """
    told = any(probe == "flight_recorder" for probe, _ in case.history.entities(r.ProbeCall))
    if told or case.merged:
        return False
    return any(ASKED_BY.intersection(rank.process.environment) for rank in case.ranks)


def _of_one_round(dumps: list[Seen[r.RecordedGroup]]) -> list[Seen[r.RecordedGroup]]:
    """Without those of ranks that have not answered since."""
    newest = max(one.at for one in dumps)
    return sorted((one for one in dumps if newest - one.at <= ROUND_SECONDS), key=lambda one: one.reading.rank)


def stood_seconds(case: Case, dumps: list[Seen[r.RecordedGroup]]) -> float:
    """For how long no rank's sequence number in a group has changed.

    Two dumps of each tell, or one that was written on a timeout, or one since which nothing has moved.
    """
    return min((_unchanged_seconds(case, one) + _since(case, one.at) for one in dumps), default=0.0)


def _since(case: Case, at: float) -> float:
    """How long ago a look was, if nothing has moved since: what it showed is so yet."""
    return case.at - at if unmoved_since(case, at) and not growing(case) else 0.0


def _recorded(case: Case) -> Iterable[Standing]:
    """Groups of which every member's recorder was read, and says the same as before."""
    for (group, _), dumps in recorded_groups(case).items():
        told = [one for one in dumps if one.reading.enqueued is not None]
        seconds = stood_seconds(case, told)
        if len(told) < 2 or len(told) < len(told[0].reading.members) or seconds < APART_SECONDS:
            continue
        looks = min(_unchanged_seconds(case, one) for one in told)
        yield recorded_standing(group, told, seconds, looks)


def _unchanged_seconds(case: Case, last: Seen[r.RecordedGroup]) -> float:
    """For how long a rank's sequence number has stood. A dump that it wrote on a timeout is about a moment of standing."""
    reading = last.reading
    if reading.origin == "file":
        return 0.0 if passed(case, last) else max(APART_SECONDS, reading.written_ago_seconds)
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


def recorded_standing(group: str, dumps: list[Seen[r.RecordedGroup]], seconds: float, looks: float) -> Standing:
    """What the dumps of all members of a group say of it, which has stood for so long."""
    reached = {one.reading.rank: one.reading.enqueued or 0 for one in dumps}
    least, most = min(reached.values()), max(reached.values())
    seats = {one.reading.rank: Seat(one.reading.rank, one.reading.pid, reached[one.reading.rank]) for one in dumps}
    apart = 0 < most - least <= LONGEST_APART
    ahead = [rank for rank, count in reached.items() if count > least] if apart else []
    waits = [
        operation
        for one in dumps
        if one.reading.rank in ahead
        for operation in one.reading.operations
        if operation.sequence == least + 1 and not operation.point_to_point
    ]
    operation = waits[0] if waits else None
    description = next((one.reading.description for one in dumps if one.reading.description), "")
    return Standing(
        group=description or group,
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


def shown(operation: r.Operation) -> str:
    """``all_reduce 3199 of Float 7087872``."""
    of = f" of {operation.dtypes} {operation.input_sizes or operation.output_sizes}" if operation.input_sizes else ""
    return f"{operation.name} {operation.sequence}{of[:80]}"


def _fresh(case: Case, series: list[Seen[R]]) -> list[Seen[R]]:
    """The newest answer and those shortly before it, as long as it is about now."""
    if not series or (case.at - series[-1].at > STALE_SECONDS and not unmoved_since(case, series[-1].at)):
        return []
    return [one for one in series if series[-1].at - one.at <= STALE_SECONDS]


def _counts(communicator: r.Communicator) -> tuple[tuple[int, tuple[tuple[str, int], ...]], ...]:
    return tuple((m.rank, tuple(sorted(m.launched.items()))) for m in communicator.members if m.launched)


def _snake(name: str) -> str:
    """``AllReduce`` -> ``all_reduce``, as torch calls it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
