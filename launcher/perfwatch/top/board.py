"""What ``perfwatch top`` shows, as plain data: one job at one moment."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from perfwatch.report.lanes import host_lane
from perfwatch.report.story import wait_text
from perfwatch.text import clean, command_line
from perfwatch.triage.case import Case
from perfwatch.triage.history import median, quantile
from perfwatch.triage.job import Member
from perfwatch.triage.questions import card_looks, card_name, moves_no_data, regime, show, user_frame
from perfwatch.verdict import Verdict
from perfwatch_probes import readings as r

LATELY_SECONDS = 60.0
SPARKS = 40  # values of a sparkline
LONGEST = 160


@dataclass(frozen=True)
class Clock:
    """The steps of the rank that is ahead. recent: the newest step times in seconds, oldest first."""

    count: int
    ago_seconds: float | None
    median_seconds: float | None
    long_seconds: float | None
    recent: tuple[float, ...]


@dataclass(frozen=True)
class Card:
    """One card over the last seconds: shares of the time in which it worked, a kernel only spun, or it waited for the host.

    recent: how much it worked, oldest first; of a card that does not tell, how much of the time a kernel was resident.
    """

    name: str
    kind: str
    works: float | None
    spins: float | None
    tensor: float | None
    dram: float | None
    power_watts: float | None
    memory_bytes: int | None
    ranks: tuple[int, ...]
    recent: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One process, several workers that do the same, or a culprit's thread. ``goes``: moving, busy, still, unknown; of ranks only."""

    depth: int
    who: str
    pid: str
    state: str
    goes: str
    step: int | None
    frame: str
    waits: str


@dataclass(frozen=True)
class Pressure:
    """One figure of the machine, 0 to 1."""

    name: str
    share: float


@dataclass(frozen=True)
class Board:
    """Everything on the screen."""

    command: str
    where: str
    verdict: Verdict | None
    clock: Clock | None
    cards: tuple[Card, ...]
    rows: tuple[Row, ...]
    pressures: tuple[Pressure, ...]
    captures: tuple[str, ...]


def board(case: Case, verdict: Verdict | None) -> Board:
    """Gather it. ``verdict``: the newest one, None while none has been made."""
    session = case.session
    captures = [event for event in case.events if event.kind == "capture" and case.at - event.at < LATELY_SECONDS]
    return Board(
        command=_short(command_line(session.command)),
        where=_short(f"{session.mode} on {session.machine.name}"),
        verdict=verdict,
        clock=_clock(case),
        cards=tuple(_card(case, uuid) for uuid in _uuids(case)),
        rows=tuple(_rows(case, verdict)),
        pressures=_pressures(case),
        captures=tuple(_short(event.text) for event in captures[-3:]),
    )


def _clock(case: Case) -> Clock | None:
    counted = [(one.steps, pid) for pid, one in case.progress.items() if one.steps is not None]
    if not counted:
        return None
    steps, pid = max(counted, key=lambda one: one[0].count)
    series = case.history.series(r.Steps, pid, seconds=LATELY_SECONDS * 5)
    recent = [value for one in series for value in one.reading.interval_seconds][-SPARKS:]
    return Clock(steps.count, steps.ago_seconds, median(recent), quantile(recent, 0.95), tuple(recent))


def _uuids(case: Case) -> list[str]:
    found = {key[0] for kind in (r.Gpu, r.GpuSample) for key in case.history.entities(kind)}
    return sorted(found, key=lambda uuid: (len(card_name(case.history, uuid)), card_name(case.history, uuid)))


def _card(case: Case, uuid: str) -> Card:
    now = regime(case.history, uuid)
    sample = case.history.latest(r.GpuSample, uuid)
    bound = (case.history.latest(r.GpuBinding, rank.pid) for rank in case.ranks)
    users = {one.reading.pid for one in bound if one is not None and uuid in one.reading.uuids}
    looks = card_looks(case.history, uuid, LATELY_SECONDS)
    recent = [
        0.0 if moves_no_data(one.reading) else one.reading.graphics for one in looks if one.reading.graphics is not None
    ]
    if not recent:
        samples = case.history.series(r.GpuSample, uuid, seconds=LATELY_SECONDS)
        recent = [one.reading.utilisation for one in samples if one.reading.utilisation is not None]
    known = now.graphics is not None and now.kind != "unknown"
    return Card(
        name=clean(card_name(case.history, uuid)),
        kind=now.kind,
        works=(now.graphics or 0.0) * (1 - now.spinning) if known else None,
        spins=(now.graphics or 0.0) * now.spinning if known else None,
        tensor=now.tensor,
        dram=now.dram,
        power_watts=now.power_watts,
        memory_bytes=None if sample is None else sample.reading.memory_used_bytes,
        ranks=tuple(rank.rank for rank in case.ranks if rank.pid in users and rank.rank is not None),
        recent=tuple(recent[-SPARKS:]),
    )


def _rows(case: Case, verdict: Verdict | None) -> list[Row]:
    """Ranks in order, but the culprits first; below each its threads that are culprits, and its other processes: alike ones on one line."""
    rows = []
    culprits = verdict.culprits if verdict is not None else ()
    blamed, blamed_threads = {one.pid for one in culprits}, defaultdict[int, dict[int, str]](dict)
    for one in culprits:
        if one.pid is not None and one.tid is not None and one.worker_pid is None:
            blamed_threads[one.pid][one.tid] = one.thread or ""
    for rank in sorted(case.ranks, key=lambda one: one.pid not in blamed):
        now = case.progress[rank.pid]
        count = None if now.steps is None else now.steps.count
        state, frame, waits = _now(case, rank.pid, now.thread)
        who = f"rank {rank.rank}" if rank.rank is not None else "rank"
        rows.append(Row(0, who, str(rank.pid), state, now.kind, count, frame, waits))
        for tid, name in blamed_threads.get(rank.pid, {}).items():
            if tid != now.thread:
                state, frame, waits = _now(case, rank.pid, tid)
                rows.append(Row(1, _short(f"thread {name}"), str(tid), state, "", None, frame, waits))
        alike: Counter[tuple[str, str, str, str]] = Counter()
        first: dict[tuple[str, str, str, str], Member] = {}
        for member in sorted(case.job.members.values(), key=lambda one: one.pid):
            if member.alive and member.rank_pid == rank.pid and member.pid != rank.pid and member.role != "service":
                key = (member.role, *_now(case, member.pid, member.pid))
                alike[key] += 1
                first.setdefault(key, member)
        for (role, state, frame, waits), count_of in alike.items():
            name = f"{role.replace('_', ' ')}" if count_of == 1 else f"{count_of} {role.replace('_', ' ')}s"
            pid = str(first[role, state, frame, waits].pid) + ("" if count_of == 1 else " ..")
            rows.append(Row(1, name, pid, state, "", None, frame, waits))
    return rows


def _now(case: Case, pid: int, tid: int) -> tuple[str, str, str]:
    """State, the program's own line, and the system call of a thread as last seen."""
    thread, stack = case.history.latest(r.Thread, pid, tid), case.history.latest(r.Stack, pid, tid)
    usage = case.history.latest(r.ProcessUsage, pid)
    state = thread.reading.state if thread is not None else usage.reading.state if usage is not None else "?"
    frame = "" if stack is None else show(user_frame(stack.reading)) or ""
    return clean(state), _short(frame), _short(wait_text(None if thread is None else thread.reading))


def _pressures(case: Case) -> tuple[Pressure, ...]:
    lane = host_lane(case.history)
    lines = lane.lines if lane is not None else ()
    return tuple(Pressure(line.name, line.points[-1][1]) for line in lines)


def _short(text: str) -> str:
    line = clean(text)
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}"
