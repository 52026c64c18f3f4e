"""From everything that one host read of a job to what others need of it: little of ranks that wait or go on, all of the rest.

A rank that stands in a collective is a victim, and one whose steps go on is no suspect: of these the training thread
suffices. Of every other rank all processes are kept, for its wait chain may end in a worker, a lock, a file or a peer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from perfwatch.recording.recording import Record
from perfwatch.triage.case import Case
from perfwatch.triage.history import KEYS, Seen
from perfwatch.triage.job import Member
from perfwatch.triage.questions import cards_of, python_threads, stack_key, user_frame, waiting_threads
from perfwatch_probes import readings as r

# Readings about the machine and about no rank in particular: the host's own verdict speaks for them.
OF_THE_MACHINE = (
    r.Host,
    r.Cgroup,
    r.Affinity,
    r.Disk,
    r.KernelMessage,
    r.ProbeCall,
)
WAITS_FOR_OTHERS = ("collective", "rendezvous")

# Per entity, the newest. A look of 8 s reads a thread some 16 times.
MOST_OF_SUSPECTS = {r.Thread: 24, r.Stack: 40, r.Descriptor: 4, r.FileGrowth: 6, r.ProcessUsage: 6, r.Steps: 12}
MOST_OF_VICTIMS = {r.Thread: 16, r.Stack: 12, r.Steps: 3, r.Descriptor: 1}
MOST_ELSEWHERE = 6  # of the functions in which the thread of a suspect was but rarely seen
MOST_OF_OTHERS_OF_VICTIMS = 2
# A rank that goes on and waits for data so much of the time: its workers may tell why it is last.
LOADING, MOST_OF_WORKERS = 0.1, 6
# Kept thread by thread, or of no use where nothing is suspected of the process itself.
NOT_OF_VICTIMS = (
    *(r.Process, r.ProcessEnded, r.Thread, r.Stack),
    *(r.ProcessUsage, r.FileGrowth, r.StackFailure, r.NativeProfile, r.Traceback, r.ThreadError),
)
MOST_OF_OTHER_THREADS = 4  # threads without Python
MOST_BY_DEFAULT = 4
GPU_SERIES = (r.GpuSample, r.GpuActivity)
GPU_EVERY_SECONDS, MOST_LOOKS_AT_A_CARD = 0.45, 40  # ten a second are read
TOLD_BY_ALL, TOLD_BY_FIRST = 64, 16  # members of a communicator
LONGEST_COMMAND = 12  # words
MOST_BYTES = 4 * 2**20  # of one job on one host, as JSON


def compact(case: Case, most_bytes: int = MOST_BYTES) -> tuple[tuple[Record, ...], int]:
    """What others need of a job on this host, in order of time, and how many readings were left out for want of room.

    Args:
        case: the job as it is known now.
        most_bytes: of all readings as JSON; beyond it, those of suspects go first of whom most is left, oldest first.
    """
    kept = [
        *_of_processes(case),
        *_of_cards(case),
        *_of_the_job(case),
    ]
    kept.sort(key=lambda record: record.at)
    return _within(kept, most_bytes)


def is_victim(case: Case, rank: Member) -> bool:
    """True if a rank waits for other ranks, maybe through its card, or goes on: its own processes explain nothing."""
    if not rank.alive:
        return False  # its last words count
    if case.progress[rank.pid].kind == "moving":
        return True
    end = case.chains[rank.pid].end
    return end.kind in WAITS_FOR_OTHERS or (end.kind == "gpu" and bool(end.detail))


def numbered(case: Case) -> dict[int, int]:
    """By pid, the rank of every rank; those that no launcher numbered are counted from 0."""
    return {rank.pid: index if rank.rank is None else rank.rank for index, rank in enumerate(case.job.ranks)}


def _of_processes(case: Case) -> Iterator[Record]:
    victims = {rank.pid for rank in case.job.ranks if is_victim(case, rank)}
    loading = {
        rank.pid for rank in case.ranks if rank.pid in victims and case.profile(rank).share("loader_wait") >= LOADING
    }
    numbers = numbered(case)
    for member in case.job.members.values():
        if member.role == "service":
            continue
        if member.rank_pid in victims and member.pid not in victims:
            if member.role == "worker" and member.rank_pid in loading:
                yield from _identity(case, member, numbers)
                yield from _gathered(case.history.series(r.Stack, member.pid, member.pid), MOST_OF_WORKERS)
            continue
        yield from _identity(case, member, numbers)
        if member.pid in victims:
            yield from _little(case, member)
        else:
            yield from _much(case, member.pid)
    for (pid,) in case.history.entities(r.ProcessUsage):
        if pid not in case.job.members:  # outside of the job: whether it works for one of it
            yield from _much(case, pid)


def _identity(case: Case, member: Member, numbers: dict[int, int]) -> Iterator[Record]:
    """Who it is, with the rank that triage found: the one that gathers sees no reason to guess it again."""
    rank = numbers.get(member.rank_pid) if member.rank_pid is not None else None
    for seen in case.history.series(r.Process, member.pid)[-1:]:
        command = seen.reading.command[:LONGEST_COMMAND]
        size = seen.reading.world_size if rank is None else case.job.world_size
        yield _record(seen, msgspec.structs.replace(seen.reading, rank=rank, world_size=size, command=command))
    yield from (_record(seen) for seen in case.history.series(r.ProcessEnded, member.pid)[-1:])


def _little(case: Case, rank: Member) -> Iterator[Record]:
    """The training thread of a rank that waits for others or goes on; autograd's, which may do the waiting; the store's."""
    history = case.history
    for tid in sorted(waiting_threads(case, rank)):
        yield from _series(history.series(r.Thread, rank.pid, tid), MOST_OF_VICTIMS[r.Thread])
        yield from _gathered(history.series(r.Stack, rank.pid, tid), MOST_OF_VICTIMS[r.Stack])
    for kind, names in KEYS.items():
        if names[:1] == ("pid",) and kind not in (*NOT_OF_VICTIMS, *OF_THE_MACHINE):
            for key in history.of(kind, rank.pid):
                yield from _series(history.series(kind, *key), MOST_OF_VICTIMS.get(kind, MOST_OF_OTHERS_OF_VICTIMS))


def _gathered(stacks: list[Seen[r.Stack]], most: int, most_elsewhere: int = 0) -> Iterable[Record]:
    """Each unbroken run of one stack as one reading; if that is still too much, each stack once, with all its samples."""
    runs: list[tuple[Any, Record]] = []
    for seen in stacks:
        key = (stack_key(seen.reading), seen.reading.native, seen.reading.owns_gil)
        if runs and runs[-1][0] == key:
            before = runs[-1][1]
            began = before.at - before.reading.span_seconds  # type: ignore[union-attr]
            samples = before.reading.samples + seen.reading.samples  # type: ignore[union-attr]
            texts = seen.reading.texts or before.reading.texts  # type: ignore[union-attr]
            span = max(0.0, seen.at - began)
            whole = msgspec.structs.replace(seen.reading, samples=samples, span_seconds=round(span, 4), texts=texts)
            runs[-1] = key, _record(seen, whole)
        else:
            runs.append((key, _record(seen)))
    if len(runs) <= most:
        return (record for _, record in runs)
    counted: Counter[Any] = Counter()
    first: dict[Any, Record] = {}
    newest: dict[Any, Record] = {}
    for key, record in runs:
        counted[key] += record.reading.samples  # type: ignore[union-attr]
        first.setdefault(key, record)
        newest[key] = record
    kept = counted.most_common(max(1, most // 2))
    return (*_extremes(first, newest, kept), *_elsewhere(newest, {key for key, _ in kept}, most_elsewhere))


def _elsewhere(newest: dict[Any, Record], kept: set[Any], most: int) -> list[Record]:
    """Of the rare stacks, where the thread was last in each function of the program's own: that it got there at all tells much."""
    last: dict[tuple[str, str], Record] = {}
    for record in sorted((record for key, record in newest.items() if key not in kept), key=lambda one: one.at):
        frame = user_frame(record.reading)  # type: ignore[arg-type]
        if frame is not None:
            last[frame.function, frame.file] = record
    return sorted(last.values(), key=lambda one: one.at)[-most:] if most else []


def _extremes(first: dict[Any, Record], newest: dict[Any, Record], counted: list[tuple[Any, int]]) -> Iterator[Record]:
    """Where a stack was first seen, and where last, with all its samples between the two: shares and times stay what they were."""
    for key, samples in counted:
        began, last = first[key], newest[key]
        if began is last:
            yield last
            continue
        yield began
        rest = samples - began.reading.samples  # type: ignore[union-attr]
        yield Record(last.at, msgspec.structs.replace(last.reading, samples=rest))


def _much(case: Case, pid: int) -> Iterator[Record]:
    history = case.history
    with_python = set(python_threads(history, pid))
    for kind, names in KEYS.items():
        if names[:1] != ("pid",) or kind in OF_THE_MACHINE or kind in (r.Process, r.ProcessEnded):
            continue
        for key in history.of(kind, pid):
            most = MOST_OF_SUSPECTS.get(kind, MOST_BY_DEFAULT)
            if kind is r.Thread and key[1] not in with_python and key[1] != pid:
                most = MOST_OF_OTHER_THREADS
            series = history.series(kind, *key)
            yield from _gathered(series, most, MOST_ELSEWHERE) if kind is r.Stack else _series(series, most)  # type: ignore[arg-type]


def _of_cards(case: Case) -> Iterator[Record]:
    """The cards on which ranks of this host run."""
    cards = {uuid for rank in case.ranks for uuid in cards_of(case.history, rank.pid).uuids}
    for kind, names in KEYS.items():
        if names[:1] != ("uuid",):
            continue
        for key in case.history.entities(kind):
            if key[0] in cards:
                series = case.history.series(kind, *key)
                yield from _thinned(series) if kind in GPU_SERIES else _series(series, MOST_BY_DEFAULT)


def _of_the_job(case: Case) -> Iterator[Record]:
    """Lines of source, and whatever else is about no process, no card and no machine (counts of collectives)."""
    for kind, names in KEYS.items():
        if names[:1] in (("pid",), ("uuid",)) or kind in OF_THE_MACHINE:
            continue
        for key in case.history.entities(kind):
            for record in _series(case.history.series(kind, *key), MOST_BY_DEFAULT):
                yield _own_part(record)


def _own_part(record: Record) -> Record:
    """Of a large communicator, of which all hosts are told the same, only the members on this host; the first hosts tell of all."""
    reading = record.reading
    if not isinstance(reading, r.Communicator) or len(reading.members) <= TOLD_BY_ALL:
        return record
    own = tuple(member for member in reading.members if member.local)
    if any(member.rank < TOLD_BY_FIRST for member in own):
        return record
    return msgspec.structs.replace(record, reading=msgspec.structs.replace(reading, members=own))


def _series(series: list[Seen[Any]], most: int) -> Iterator[Record]:
    """The newest half as they are, and of the older ones some at even distances, the first among them."""
    if len(series) <= most:
        return (_record(seen) for seen in series)
    newest = max(1, most // 2)
    older, count = series[:-newest], most - newest
    chosen = [older[index * len(older) // count] for index in range(count)]
    return (_record(seen) for seen in [*chosen, *series[-newest:]])


def _thinned(series: list[Seen[Any]]) -> Iterator[Record]:
    """Of each stretch of time the look in which the card did least: that is where one kernel ended and the next began."""
    slots: dict[int, Seen[Any]] = {}
    for seen in series:
        slot = int(seen.at / GPU_EVERY_SECONDS)
        if slot not in slots or _busy(seen.reading) <= _busy(slots[slot].reading):
            slots[slot] = seen
    return (_record(seen) for seen in list(slots.values())[-MOST_LOOKS_AT_A_CARD:])


def _busy(look: r.GpuSample | r.GpuActivity) -> float:
    return (look.graphics if isinstance(look, r.GpuActivity) else look.utilisation) or 0.0


def _record(seen: Seen[Any], reading: Any = None) -> Record:
    return Record(round(seen.at, 4), seen.reading if reading is None else reading)


def _within(records: list[Record], most_bytes: int) -> tuple[tuple[Record, ...], int]:
    """Who a process is and how it ended stays; of the rest the newest."""
    sizes = [len(msgspec.json.encode(record)) for record in records]
    room = most_bytes - sum(size for size, one in zip(sizes, records, strict=True) if _is_identity(one))
    kept: list[Record] = []
    for size, record in zip(reversed(sizes), reversed(records), strict=True):
        if _is_identity(record):
            kept.append(record)
        elif size <= room:
            room -= size
            kept.append(record)
    kept.reverse()
    return tuple(kept), len(records) - len(kept)


def _is_identity(record: Record) -> bool:
    return isinstance(record.reading, r.Process | r.ProcessEnded)
