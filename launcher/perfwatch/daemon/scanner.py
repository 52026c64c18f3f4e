"""Training jobs as they appear on this machine, found at next to no cost: a process is looked at when it is new, then ever less.

One scan lists /proc (1 ms beside a thousand processes) and identifies those that are new (0.2 ms each). A process that is not
Python with torch may become so, by an exec or an import: it is looked at again when it is 5, 10, 20 ... seconds older.

The time of a scan is shared between the users: a user whose processes are many, or slow to read, delays its own alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from perfwatch.daemon.shares import Shares
from perfwatch.jobs.discovery import Machine, is_notebook
from perfwatch.jobs.slurm_job import VARIABLE, SlurmJob
from perfwatch.jobs.target import WORKER_NAME
from perfwatch.recording.redaction import redact_command
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.lineage import lineage
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import identify, read_stat
from perfwatch_probes.readings import Process
from perfwatch_probes.stat import parse_pairs

AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 5.0, 300.0
SCAN_BUDGET_SECONDS = 1.0  # for looking at processes: 3,000 to 5,000 new ones
# Kept of each process of the machine: enough to know a notebook by, and to show.
KEPT_WORDS, KEPT_CHARACTERS = 8, 256


@dataclass(frozen=True)
class Found:
    """A job: the process at its top, which is known by pid and start time, and those of its tree that have torch loaded."""

    root: Process
    trainers: tuple[int, ...]

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from a later job under the same pid."""
        return self.root.pid, self.root.start_ticks


@dataclass
class _Seen:
    process: Process
    due: float
    pause: float


class Scanner:
    """Remembers every process of the machine.

    Args:
        filesystem: where /proc is.
        child: where reads that may block are made.
        clock: monotonic seconds.
        uid: only jobs of this user; None: of all users.
        slurm_job: only what belongs to this job of Slurm; None: everything.

    Attributes:
        hidden: Python processes of others that we may not look into.
        delayed: users with processes for which the last scan had no time left.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        child: Caller,
        clock: Callable[[], float],
        uid: int | None = None,
        slurm_job: SlurmJob | None = None,
    ) -> None:
        self._filesystem, self._child, self._clock, self._uid = filesystem, child, clock, uid
        self._slurm_job = slurm_job
        self._seen: dict[int, _Seen] = {}
        self._kernel: set[int] = set()
        self._shares = Shares(clock)
        self.hidden = 0
        self.delayed: tuple[int, ...] = ()

    def scan(self) -> list[Found]:
        """Every job that is there now, oldest first."""
        pids = self._filesystem.processes()
        there = set(pids)
        self._kernel &= there
        for pid in [pid for pid in self._seen if pid not in there]:
            del self._seen[pid]
        waiting = self._due(pids)
        left = {uid: len(queue) for uid, queue in waiting.items()}
        for uid, pid in self._shares.turns(waiting, SCAN_BUDGET_SECONDS):
            left[uid] -= 1
            self._look(pid)
        self.delayed = tuple(uid for uid, count in left.items() if count)
        machine = Machine({pid: seen.process for pid, seen in self._seen.items()})
        trainers: dict[int, list[int]] = {}
        for process in machine.processes.values():
            if process.python and process.torch_loaded and not _aside(process) and self._asked_for(process):
                trainers.setdefault(machine.top(process), []).append(process.pid)
        self.hidden = sum(
            one.python and one.torch_loaded is None and bool(one.command) for one in machine.processes.values()
        )
        found = [Found(machine.processes[top], tuple(sorted(pids))) for top, pids in trainers.items()]
        return sorted((one for one in found if not _aside(one.root)), key=lambda one: one.root.start_ticks)

    def ancestors(self, *pids: int) -> set[int]:
        """Some processes and those above them, as far as they are known."""
        found: set[int] = set()
        for pid in pids:
            if pid in self._seen and pid not in found:
                found |= {one.pid for one in self._lineage(self._seen[pid].process)}
        return found

    def _asked_for(self, process: Process) -> bool:
        """True if a rank is of the user and of the Slurm job that were named. The process at the top may be root's slurmstepd."""
        if self._uid not in (None, process.uid):
            return False
        if self._slurm_job is None:
            return True
        return self._slurm_job.contains(self._filesystem, self._lineage(process))

    def _lineage(self, process: Process) -> list[Process]:
        return list(lineage(process, self._parent))

    def _parent(self, process: Process) -> Process | None:
        above = self._seen.get(process.parent_pid)
        return above.process if above is not None else None

    def _due(self, pids: list[int]) -> dict[int, list[tuple[int, int]]]:
        """The processes to look at, by user: (uid, pid), the new ones first."""
        now = self._clock()
        new: dict[int, list[tuple[int, int]]] = {}
        again: list[tuple[float, int, int]] = []
        for pid in pids:
            seen = self._seen.get(pid)
            if pid in self._kernel or (seen is not None and now < seen.due):
                continue
            if seen is not None:
                again.append((seen.due, _uid_or_root(seen.process.uid), pid))
            elif (uid := self._uid_of(pid)) is not None:
                new.setdefault(uid, []).append((uid, pid))
        for _, uid, pid in sorted(again):
            new.setdefault(uid, []).append((uid, pid))
        return new

    def _uid_of(self, pid: int) -> int | None:
        """The user that a new process counts for; None when it has ended."""
        try:
            if owner := self._filesystem.owner(pid):
                return owner
            status = parse_pairs(self._filesystem.read_text(f"{self._filesystem.proc}/{pid}/status"))
            return int(status["Uid"].split()[0])
        except Unavailable:
            return None
        except (KeyError, ValueError, IndexError):
            return 0

    def _look(self, pid: int) -> None:
        now, seen = self._clock(), self._seen.get(pid)
        try:
            stat = read_stat(self._filesystem, pid)
            if (
                pid == 2 and stat.name == "kthreadd"
            ) or stat.parent_pid in self._kernel:  # its children have higher pids
                self._kernel.add(pid)
                return
            process = identify(self._filesystem, pid, self._child, redact_command)
        except (Unavailable, ValueError):
            self._seen.pop(pid, None)  # it ended just now
            return
        fresh = seen is None or seen.process.start_ticks != process.start_ticks
        known = process.python and process.torch_loaded
        pause = LONGEST_AGAIN_SECONDS if known else AGAIN_SECONDS if fresh or seen is None else 2 * seen.pause
        pause = min(pause, LONGEST_AGAIN_SECONDS)
        self._seen[pid] = _Seen(_kept(process), now + pause, pause)


def _uid_or_root(uid: int | None) -> int:
    return uid or 0


def _kept(process: Process) -> Process:
    """What is remembered of a process: its user decides how long its command line and environment are."""
    words = tuple(word[:KEPT_CHARACTERS] for word in process.command[:KEPT_WORDS])
    job_id = process.environment.get(VARIABLE, "")[:KEPT_CHARACTERS]
    return msgspec.structs.replace(process, command=words, environment={VARIABLE: job_id} if job_id else {})


def _aside(process: Process) -> bool:
    """True for a notebook, and for a loader's worker: where its job has ended it is about to end too."""
    return process.name.startswith(WORKER_NAME) or is_notebook(process)
