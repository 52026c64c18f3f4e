"""torch's flight recorder: each rank's own list of its newest collectives, with sizes, types and Python lines.

Asked for through the named pipe that a rank makes when ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` is in its environment (the agent
of ``perfwatch run`` sets it inside the process, to its own folder): one byte, and a second later the dump lies beside. A rank
whose watchdog timed out has written one by itself; that is found and read too. A dump was written by the job: it is read by an
unpickler that knows plain containers only, in a guest (``perfwatch_probes.guest``) with little memory that may crash: one more process
than that which asks, so that what one rank has written costs no other rank's answer.

Source: torch's FlightRecorder.hpp and ProcessGroupNCCL.cpp (2.4 to 2.13); tried on torch 2.11 with NCCL.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perfwatch_probes import guest
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.flight_record import parse
from perfwatch_probes.group_variables import AGENT_VARIABLE, DUMP_PREFIX, DUMP_VARIABLES, PIPE_PREFIX, PIPE_VARIABLE
from perfwatch_probes.guest import Guests
from perfwatch_probes.private import parse_environment, read_environment
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import ProbeCall, RecordedGroup

MOST_DUMP_BYTES = 64 * 2**20  # 2,000 entries with stacks are 1 MiB
DUMP_SECONDS = 4.0  # a rank looks at its pipe once a second, and writes within another
LOOK_SECONDS = 0.05
TOUCH_SECONDS = 1.0  # for a look at a rank's files, or a byte into its pipe
READ_SECONDS = 5.0  # for one dump at most: 59 MiB of plain pickle take 2.8 (measured), a usual one 0.02
ANSWER_SECONDS = (
    9.0  # for all; a dump gets half of what is left, so that those which never end leave something to the next
)
MEMORY_BYTES = 2**30  # that reading dumps may take: 64 MiB of pickle are ten times that as objects
NOT_ARMED = "start it with perfwatch run, or with TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_pipe_ in its environment"
SMALLER = "start the job with TORCH_FR_BUFFER_SIZE=2000, or read it with torchfrtrace"


@dataclass(frozen=True)
class Rank:
    """One rank to ask. ``environment``, ``uid``: what is known of it, should it be out of reach (the process has ended)."""

    pid: int
    rank: int
    age_seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)
    uid: int | None = None


Mark = tuple[int, int, int]  # what changes when a file is written anew
Marks = dict[str, Mark | None]


class FlightRecorderProbe:
    """Asks several ranks at once, or looks for what they have written by themselves.

    Args:
        filesystem: where /proc is.
        clock: unix time, seconds: files bear it.
        sleep: waits between two looks.
        seconds: until all is read that will be.
        guests: who touches the ranks' pipes and files; this process may be a fork, so children of its own are started.
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
        guests: Guests | None = None,
    ) -> None:
        self._filesystem = filesystem or Filesystem()
        self._clock, self._sleep = clock, sleep
        self._seconds, self._ends, self._reading = seconds, 0.0, 0.0
        self._guests = (guests or Guests(self._filesystem.proc)).fresh()

    def look(self, ranks: Sequence[Rank], ask: bool = True) -> Iterator[RecordedGroup | ProbeCall]:
        """The groups of every rank that answers, and how it went with each of the others.

        Runs in a process of its own. ask: write to the pipes; False only looks for dumps that are there already.
        Raises Unavailable when no rank can be asked and none has written anything.
        """
        try:
            yield from self._answers(ranks, ask)
        finally:
            self._guests.close()

    def _answers(self, ranks: Sequence[Rank], ask: bool) -> Iterator[RecordedGroup | ProbeCall]:
        began = self._clock()
        self._ends, self._reading = began + self._seconds, 0.0
        waiting: dict[Rank, tuple[Caller, Marks]] = {}
        refused: dict[Rank, Unavailable] = {}
        told = 0
        for rank in ranks:
            try:
                environment, caller, folder = self._surroundings(rank)
                before = self._marks(
                    caller, [os.path.join(folder, path) for path in dump_paths(environment, rank.rank)]
                )
                if ask:
                    pipe = os.path.join(folder, pipe_path(environment, rank.rank))
                    caller.call(ring, pipe, deadline_seconds=TOUCH_SECONDS)
                    waiting[rank] = (caller, before)
                else:
                    yield from self._written(rank, caller, before)
                    told += 1
            except Unavailable as unavailable:
                refused[rank] = unavailable
        while waiting and self._clock() - began - self._reading < DUMP_SECONDS:
            for rank, (caller, before) in list(waiting.items()):
                try:
                    found = self._fresh(rank, caller, before)
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

    def _surroundings(self, rank: Rank) -> tuple[dict[str, str], Caller, str]:
        """Its environment, who touches its files, and the folder from which its relative paths start."""
        folder = f"{self._filesystem.proc}/{rank.pid}"
        try:
            environment = parse_environment(read_environment(self._filesystem, rank.pid))
            inside, working = self._guests.inside(rank.pid), self._filesystem.readlink(f"{folder}/cwd")
        except Absent:  # it has ended: its files are looked for where a process on this host would have put them
            if rank.uid is None:
                raise
            return dict(rank.environment), self._guests.of_user(rank.uid), "/"
        return environment, inside, working

    def _marks(self, caller: Caller, paths: Sequence[str]) -> Marks:
        found = caller.call(marks, list(paths), deadline_seconds=TOUCH_SECONDS)
        return dict(zip(paths, found, strict=True))

    def _fresh(self, rank: Rank, caller: Caller, before: Marks) -> list[RecordedGroup]:
        """What was written since the question; nothing while it is not complete."""
        for path, mark in self._marks(caller, list(before)).items():
            if mark is None or mark == before[path]:
                continue
            try:
                return self._read(path, rank, caller, "pipe")
            except Unavailable:
                again = self._marks(caller, [path])[path]
                if again == mark and self._clock() - mark[0] / 1e9 > LOOK_SECONDS * 10:
                    raise  # complete, and still not to be read
                continue
        return []

    def _written(self, rank: Rank, caller: Caller, there: Marks) -> list[RecordedGroup]:
        for path, mark in there.items():
            if mark is None:
                continue
            ago = max(0.0, self._clock() - mark[0] / 1e9)
            if rank.age_seconds is None or ago <= rank.age_seconds:  # an older one is another run's
                return self._read(path, rank, caller, "file", ago)
        raise Absent(f"rank {rank.rank} has written no flight-recorder dump")

    def _read(
        self, path: str, rank: Rank, caller: Caller, origin: str, written_ago_seconds: float = 0.0
    ) -> list[RecordedGroup]:
        """What one dump says. Raises Unavailable, whatever reading it comes to."""
        told = (path, self._owners(rank), rank.pid, rank.rank, origin, written_ago_seconds)
        now = self._clock()
        try:
            return caller.call(recorded, *told, deadline_seconds=min(READ_SECONDS, (self._ends - now) / 2))
        except Unavailable:
            raise
        except Exception as error:  # a state of a dump that was not foreseen: the other ranks' are read all the same
            self._guests.close()  # its memory may be full
            raise Unavailable(f"a flight-recorder dump cannot be read: {type(error).__name__}") from None
        finally:
            self._reading += self._clock() - now

    def _owners(self, rank: Rank) -> frozenset[int]:
        """Whose file a dump may be: every user can put one into /tmp."""
        known = frozenset((0, os.geteuid())) | ({rank.uid} if rank.uid is not None else set())
        try:
            return known | {os.stat(f"{self._filesystem.proc}/{rank.pid}").st_uid}
        except OSError:
            return known


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


def ring(path: str) -> None:
    """Write one byte into a named pipe, and into nothing else; runs in a guest. Raises Unavailable when none listens there."""
    try:
        descriptor = guest.opened(path, stat.S_ISFIFO, os.O_WRONLY)
    except FileNotFoundError:
        raise Absent("the rank has not made its flight recorder's pipe: it has no NCCL process group yet") from None
    except ValueError:
        raise Unavailable(f"{os.path.basename(path)} is no pipe: nothing was written to it") from None
    except OSError as error:  # ENXIO: a pipe without a reader
        raise Unavailable(f"the flight recorder's pipe cannot be written: {error.strerror}") from None
    try:
        os.write(descriptor, b"1")
    except OSError as error:
        raise Unavailable(f"the flight recorder's pipe cannot be written: {error.strerror}") from None
    finally:
        os.close(descriptor)


def recorded(
    path: str, owners: frozenset[int], pid: int, rank: int, origin: str, written_ago_seconds: float
) -> list[RecordedGroup]:
    """The groups in one dump: what a guest does that may crash over it. Raises Unavailable."""
    return parse(read(path, owners), pid, rank, origin, written_ago_seconds)


def read(path: str, owners: frozenset[int]) -> bytes:
    """A dump, whole; runs in a guest. Raises Unavailable for a file that is too large, of another owner, or no file."""
    try:
        descriptor = guest.opened(path)
        with open(descriptor, "rb", buffering=0) as file:
            state = os.fstat(descriptor)  # of this very file: the path may name another one by now
            if state.st_uid not in owners:
                raise Unavailable(f"a flight-recorder dump belongs to uid {state.st_uid}, who does not run the job")
            if state.st_size > MOST_DUMP_BYTES:
                size = state.st_size / 2**20
                raise Unavailable(f"a flight-recorder dump of {size:.0f} MiB is too large to be read safely", SMALLER)
            return guest.contents(file, MOST_DUMP_BYTES)
    except ValueError:
        raise Unavailable("a flight-recorder dump is not a regular file") from None
    except OSError as error:
        raise Unavailable(f"a flight-recorder dump cannot be read: {error.strerror}") from None


def marks(paths: list[str]) -> list[Mark | None]:
    """Of each file, what changes when it is written anew; runs in a guest."""
    found: list[Mark | None] = []
    for path in paths:
        try:
            state = guest.state_of(path)
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError:
            found.append(None)
    return found
