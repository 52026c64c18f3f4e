"""The compact sessions of many hosts as one recording, on which triage runs as if all ranks were on one machine.

*Processes.* A pid means something on its own host only: each host gets a range of numbers of its own, and what a verdict says
is translated back (``Translation``). A connection whose other end is on another host is joined to the process there.

*Time.* No clock of one host is compared with that of another. Every host's readings are placed so that its own "now" (the
end of its look) is the same moment for all: what is compared are ages, which the kernel of each host counted itself. So two
looks a few seconds apart are told as one, and nothing is assumed to have lasted beyond the look at it. How far apart they were
is known (``Case.apart_seconds``): waits of two hosts that were both shorter need not have been at one time, and no hang is
made of them.

When processes began is placed likewise: the ticks of each kernel count from its own boot.

*Ranks.* Where a launcher numbered the ranks, that is who they are; where not (a plain spawn on each host), they are numbered
through in the order of the hosts. A rank that two hosts claim is told in ``Merged.doubled``.

One pass over all readings: the work grows with their number and with nothing else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from perfwatch.fleet.merge.joining import Members, join, own_members
from perfwatch.fleet.merge.snapshot import JobView
from perfwatch.recording.recording import Record
from perfwatch.recording.session import Session
from perfwatch.triage.job import TICKS_PER_SECOND
from perfwatch.verdict import Culprit, Link, Verdict
from perfwatch_probes import readings as r

NOW_TICKS = 10**12  # above what any kernel has counted: the end of each look, in its processes' ``start_ticks``
STRIDE = 10_000_000_000  # far above any pid (at most 2^22) and any number that a sentence about a job may hold
_NUMBER = re.compile(r"(?<!\d)\d{11,20}(?!\d)")
_PIDS = frozenset({"pid", "tid", "parent_pid", "child_pid", "local_pid", "tracer_pid"})
_MANY_PIDS = frozenset({"readers", "writers", "lock_holders", "holders_started", "peer_pids"})
_NESTED = frozenset({"wait", "socket"})


@dataclass(frozen=True)
class Part:
    """One host's view of the job, under the name by which it was asked."""

    host: str
    view: JobView


@dataclass(frozen=True)
class Translation:
    """From the numbers of a merged recording back to hosts and their pids."""

    hosts: tuple[str, ...]

    def host(self, number: int) -> str | None:
        """The host of a merged pid; None for a number that is none."""
        index = number // STRIDE - 1
        return self.hosts[index] if 0 <= index < len(self.hosts) else None

    def pid(self, number: int) -> int:
        """The pid on its own host."""
        return number % STRIDE if self.host(number) is not None else number

    def text(self, text: str) -> str:
        """A sentence with the pids that its reader knows, each with its host."""

        def told(match: re.Match[str]) -> str:
            number = int(match.group())
            host = self.host(number)
            return match.group() if host is None else f"{self.pid(number)} on {host}"

        return _NUMBER.sub(told, text)

    def command(self, text: str) -> str:
        """A command for the user, with the host to type it on."""
        hosts = dict.fromkeys(host for one in _NUMBER.findall(text) if (host := self.host(int(one))))
        plain = _NUMBER.sub(lambda match: str(self.pid(int(match.group()))), text)
        return f"on {', '.join(hosts)}: {plain}" if hosts else plain

    def verdict(self, verdict: Verdict) -> Verdict:
        """A whole verdict."""
        translated: Verdict = self._value(verdict)
        return translated

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple):
            return tuple(self._value(one) for one in value)
        if isinstance(value, Culprit | Link):
            value = msgspec.structs.replace(value, host=self.host(value.pid) or value.host)
        if isinstance(value, msgspec.Struct):
            changed = {name: self._field(name, getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **changed)
        return value

    def _field(self, name: str, value: Any) -> Any:
        if name in ("pid", "worker_pid", "tid"):
            return None if value is None else self.pid(value)
        if name == "next":
            return tuple(self.command(one) for one in value)
        return self._value(value)


@dataclass(frozen=True)
class Merged:
    """All hosts' readings in order of time, and what became known on the way.

    present: by rank, the hosts that have it. addresses: MASTER_ADDR:MASTER_PORT as each host knows it.
    """

    session: Session
    records: tuple[Record, ...]
    end: float
    translation: Translation
    present: dict[int, tuple[str, ...]]
    addresses: dict[str, str]
    counted: bool = False  # some ranks were numbered by us

    @property
    def doubled(self) -> dict[int, tuple[str, ...]]:
        """Ranks that more than one host claims."""
        return {rank: hosts for rank, hosts in self.present.items() if len(hosts) > 1}


@dataclass
class _Shared:
    """Equal pieces of many readings, kept once: 4,096 ranks stand at a handful of stacks."""

    known: dict[Any, Any] = field(default_factory=dict)

    def one(self, value: Any) -> Any:
        return self.known.setdefault(value, value)


def merge(parts: Sequence[Part], session: Session) -> Merged:
    """Put the views of one job together.

    Args:
        parts: one for each host that answered; the order decides how ranks without numbers are numbered.
        session: who asks, where and when; its conditions (patience) hold for the verdict.
    """
    end = max((part.view.end for part in parts), default=0.0)
    shared = _Shared()
    records: list[Record] = []
    present: dict[int, list[str]] = {}
    roots: list[int] = []
    members: Members = {}
    first_rank = 0
    for index, part in enumerate(parts):
        view = part.view
        base = (index + 1) * STRIDE
        moved = 0 if view.numbered else first_rank
        ranks = [rank + moved for rank in view.ranks]
        for rank in ranks:
            present.setdefault(rank, []).append(part.host)
        first_rank = max([first_rank, *(rank + 1 for rank in ranks)])
        later = _later(view)
        roots += [base + pid for pid in view.session.root_pids]
        for record in view.records:
            reading = _placed(record.reading, base, moved, shared, later)
            if isinstance(reading, r.Network):  # every host has an eth0
                reading = msgspec.structs.replace(reading, interface=f"{reading.interface}@{part.host}")
            if isinstance(reading, r.Communicator):
                reading = own_members(reading, base, members)
            records.append(Record(round(record.at + end - view.end, 4), reading))
    records.sort(key=lambda record: record.at)
    return Merged(
        session=msgspec.structs.replace(session, root_pids=tuple(roots)),
        records=tuple(join(records, members)),
        end=end,
        translation=Translation(tuple(part.host for part in parts)),
        present={rank: tuple(hosts) for rank, hosts in sorted(present.items())},
        addresses={part.host: part.view.identity.master for part in parts if part.view.identity.master},
        counted=any(not part.view.numbered for part in parts),
    )


def _later(view: JobView) -> int:
    """What to add to this host's ticks; 0 where no process says how old it is."""
    for record in view.records:
        one = record.reading
        if isinstance(one, r.Process) and one.age_seconds is not None:
            return NOW_TICKS - one.start_ticks - round(TICKS_PER_SECOND * (one.age_seconds + view.end - record.at))
    return 0


def _placed(reading: Any, base: int, moved: int, shared: _Shared, later: int) -> Any:
    changed: dict[str, Any] = {}
    for name in reading.__struct_fields__:
        if name in _PIDS:
            value = getattr(reading, name)
            if value is not None and value > 0:
                changed[name] = base + value
        elif name in _MANY_PIDS:
            changed[name] = tuple(base + pid for pid in getattr(reading, name))
        elif name in _NESTED and (inside := getattr(reading, name)) is not None:
            changed[name] = _placed(inside, base, moved, shared, later)
        elif name == "start_ticks" and reading.start_ticks is not None:
            changed[name] = reading.start_ticks + later
        elif name == "frames":
            changed[name] = shared.one(tuple(shared.one(frame) for frame in reading.frames))
        elif name == "command":
            changed[name] = shared.one(reading.command)
        elif name == "rank" and moved and reading.rank is not None:
            changed[name] = reading.rank + moved
    return msgspec.structs.replace(reading, **changed) if changed else reading
