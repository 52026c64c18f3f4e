"""torch's flight recorder: each rank's own list of its newest collectives, with sizes, types and Python lines.

Asked for through the named pipe that a rank makes when ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` is in its environment (the agent
of ``perfwatch run`` sets it inside the process, to its own folder): one byte, and a second later the dump lies beside. A rank
whose watchdog timed out has written one by itself; that is found and read too. A dump was written by the job: it is read by an
unpickler that knows plain containers only, in a process with little memory that may crash: one more than that which asks, so that
what one rank has written costs no other rank's answer.

Source: torch's FlightRecorder.hpp and ProcessGroupNCCL.cpp (2.4 to 2.13); tried on torch 2.11 with NCCL.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfwatch.probes.deadline import KillableChild
from perfwatch.probes.filesystem import Absent, Filesystem
from perfwatch.probes.flight_record import parse
from perfwatch.probes.group_variables import AGENT_VARIABLE, DUMP_PREFIX, DUMP_VARIABLES, PIPE_PREFIX, PIPE_VARIABLE
from perfwatch.probes.private import parse_environment, read_environment
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import ProbeCall, RecordedGroup

MOST_DUMP_BYTES = 64 * 2**20  # 2,000 entries with stacks are 1 MiB
DUMP_SECONDS = 4.0  # a rank looks at its pipe once a second, and writes within another
LOOK_SECONDS = 0.05
READ_SECONDS = 5.0  # for one dump at most: 59 MiB of plain pickle take 2.8 (measured), a usual one 0.02
ANSWER_SECONDS = (
    9.0  # for all; a dump gets half of what is left, so that those which never end leave something to the next
)
MEMORY_BYTES = 2**30  # that reading dumps may take: 64 MiB of pickle are ten times that as objects
NOT_ARMED = "start it with perfwatch run, or with TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_pipe_ in its environment"
SMALLER = "start the job with TORCH_FR_BUFFER_SIZE=2000, or read it with torchfrtrace"


@dataclass(frozen=True)
class Rank:
    """One rank to ask. ``environment``: what is known of it, should its own be out of reach (the process has ended)."""

    pid: int
    rank: int
    age_seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)


class FlightRecorderProbe:
    """Asks several ranks at once, or looks for what they have written by themselves.

    Args:
        filesystem: where /proc is.
        clock: unix time, seconds: files bear it.
        sleep: waits between two looks.
        seconds: until all is read that will be.
    """

    NAME = "flight_recorder"
    NEEDS = "a job started by perfwatch run (or with TORCH_NCCL_DEBUG_INFO_PIPE_FILE); NCCL; the job's user, or root"
    COST = "two forks and 10 ms of CPU for two small dumps, 23 ms for one of 270 KB; in the rank, a thread of its own"

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._filesystem = filesystem or Filesystem()
        self._clock, self._sleep = clock, sleep
        self._seconds, self._ends, self._reading = seconds, 0.0, 0.0
        self._reader = KillableChild()

    def look(self, ranks: Sequence[Rank], ask: bool = True) -> Iterator[RecordedGroup | ProbeCall]:
        """The groups of every rank that answers, and how it went with each of the others.

        Runs in a process of its own. ask: write to the pipes; False only looks for dumps that are there already.
        Raises Unavailable when no rank can be asked and none has written anything.
        """
        try:
            yield from self._answers(ranks, ask)
        finally:
            self._reader.close()

    def _answers(self, ranks: Sequence[Rank], ask: bool) -> Iterator[RecordedGroup | ProbeCall]:
        began = self._clock()
        self._ends, self._reading = began + self._seconds, 0.0
        waiting: dict[Rank, tuple[list[Path], dict[Path, tuple[int, int, int] | None]]] = {}
        refused: dict[Rank, Unavailable] = {}
        told = 0
        for rank in ranks:
            try:
                environment, root = self._surroundings(rank)
                dumps = [root(path) for path in dump_paths(environment, rank.rank)]
                before = {path: _mark(path) for path in dumps}
                if ask:
                    ring(root(pipe_path(environment, rank.rank)))
                    waiting[rank] = (dumps, before)
                else:
                    yield from self._written(rank, dumps)
                    told += 1
            except Unavailable as unavailable:
                refused[rank] = unavailable
        while waiting and self._clock() - began - self._reading < DUMP_SECONDS:
            for rank, (dumps, before) in list(waiting.items()):
                try:
                    found = self._fresh(rank, dumps, before)
                except Unavailable as unavailable:
                    refused[rank] = unavailable
                    del waiting[rank]
                    continue
                if found:
                    del waiting[rank]
                    told += 1
                    yield from found
            self._sleep(LOOK_SECONDS)
        silent = Unavailable(f"a rank has not written its flight recorder within {DUMP_SECONDS:g} s")
        refused |= dict.fromkeys(waiting, silent)
        if refused and not told:
            raise next(iter(refused.values()))
        for rank, why in refused.items():
            yield ProbeCall(
                probe=self.NAME,
                entity=f"rank {rank.rank}",
                duration_seconds=round(self._clock() - began, 3),
                outcome="absent" if isinstance(why, Absent) else "unavailable",
                reason=why.reason,
                advice=why.advice,
            )

    def _surroundings(self, rank: Rank) -> tuple[dict[str, str], Callable[[str], Path]]:
        """Its environment, and how a path of its own is reached from here."""
        folder = f"{self._filesystem.proc}/{rank.pid}"
        try:
            environment = parse_environment(read_environment(self._filesystem, rank.pid))
        except Absent:  # it has ended: its files are looked for where a process on this host would have put them
            return dict(rank.environment), Path

        def reach(path: str) -> Path:
            return Path(f"{folder}/root{path}") if path.startswith("/") else Path(f"{folder}/cwd/{path}")

        return environment, reach

    def _fresh(
        self, rank: Rank, dumps: Sequence[Path], before: Mapping[Path, tuple[int, int, int] | None]
    ) -> list[RecordedGroup]:
        """What was written since the question; nothing while it is not complete."""
        for path in dumps:
            mark = _mark(path)
            if mark is None or mark == before[path]:
                continue
            try:
                return self._read(path, rank, "pipe")
            except Unavailable:
                if _mark(path) == mark and self._clock() - mark[0] / 1e9 > LOOK_SECONDS * 10:
                    raise  # complete, and still not to be read
                continue
        return []

    def _written(self, rank: Rank, dumps: Sequence[Path]) -> list[RecordedGroup]:
        for path in dumps:
            mark = _mark(path)
            if mark is None:
                continue
            ago = max(0.0, self._clock() - mark[0] / 1e9)
            if rank.age_seconds is None or ago <= rank.age_seconds:  # an older one is another run's
                return self._read(path, rank, "file", ago)
        raise Absent(f"rank {rank.rank} has written no flight-recorder dump")

    def _read(self, path: Path, rank: Rank, origin: str, written_ago_seconds: float = 0.0) -> list[RecordedGroup]:
        """What one dump says. Raises Unavailable, whatever reading it comes to."""
        told = (str(path), self._owners(rank), rank.pid, rank.rank, origin, written_ago_seconds)
        now = self._clock()
        try:
            return self._reader.call(recorded, *told, deadline_seconds=min(READ_SECONDS, (self._ends - now) / 2))
        except Unavailable:
            raise
        except Exception as error:  # a state of a dump that was not foreseen: the other ranks' are read all the same
            self._reader.close()  # its memory may be full
            raise Unavailable(f"a flight-recorder dump cannot be read: {type(error).__name__}") from None
        finally:
            self._reading += self._clock() - now

    def _owners(self, rank: Rank) -> frozenset[int]:
        """Whose file a dump may be: anybody can put one into /tmp."""
        try:
            return frozenset((0, os.geteuid(), os.stat(f"{self._filesystem.proc}/{rank.pid}").st_uid))
        except OSError:
            return frozenset((0, os.geteuid()))


def pipe_path(environment: Mapping[str, str], rank: int) -> str:
    """The named pipe of a rank. Raises Unavailable where the job was not armed."""
    folder = environment.get(AGENT_VARIABLE)
    prefix = environment.get(PIPE_VARIABLE) or (f"{folder}/{PIPE_PREFIX}" if folder else "")
    if not prefix:
        raise Unavailable("the job's flight recorder has no pipe to ask through", NOT_ARMED)
    return f"{prefix}{rank}.pipe"


def dump_paths(environment: Mapping[str, str], rank: int) -> list[str]:
    """Where a rank may write: where its environment says, else the agent's folder, else torch's defaults, the newest version's first."""
    named = [environment[name] for name in DUMP_VARIABLES if environment.get(name)]
    if environment.get(AGENT_VARIABLE):
        named.append(f"{environment[AGENT_VARIABLE]}/{DUMP_PREFIX}")
    home = environment.get("HOME", "")
    cache = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    usual = [f"{cache}/torch/comm_lib_trace_rank_"] if cache else []
    return [f"{prefix}{rank}" for prefix in dict.fromkeys([*named, *usual, "/tmp/nccl_trace_rank_"])]


def ring(path: Path) -> None:
    """Write one byte into a named pipe, and into nothing else. Raises Unavailable when nobody listens there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Absent("the rank has not made its flight recorder's pipe: it has no NCCL process group yet") from None
    except OSError as error:  # ENXIO: a pipe without a reader
        raise Unavailable(f"the flight recorder's pipe cannot be written: {error.strerror}") from None
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise Unavailable(f"{path.name} is no pipe: nothing was written to it")
        os.write(descriptor, b"1")
    except OSError as error:
        raise Unavailable(f"the flight recorder's pipe cannot be written: {error.strerror}") from None
    finally:
        os.close(descriptor)


def recorded(
    path: str, owners: frozenset[int], pid: int, rank: int, origin: str, written_ago_seconds: float
) -> list[RecordedGroup]:
    """The groups in one dump: what the child does that may crash over it. Raises Unavailable."""
    return parse(read(Path(path), owners), pid, rank, origin, written_ago_seconds)


def read(path: Path, owners: frozenset[int]) -> bytes:
    """A dump, whole. Raises Unavailable for a file that is too large, somebody else's or no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"a flight-recorder dump cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise Unavailable("a flight-recorder dump is no regular file")
        if state.st_uid not in owners:
            raise Unavailable(f"a flight-recorder dump belongs to uid {state.st_uid}, who does not run the job")
        if state.st_size > MOST_DUMP_BYTES:
            size = state.st_size / 2**20
            raise Unavailable(f"a flight-recorder dump of {size:.0f} MiB is too large to be read safely", SMALLER)
        return file.read(MOST_DUMP_BYTES + 1)


def _mark(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written anew."""
    try:
        state = os.lstat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
