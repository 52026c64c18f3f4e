"""The processes of the watched job: its tree is followed as ranks and workers start and exit.

A process is identified by pid and start time. If a pid is reused, the old process has ended and the new one is unrelated.
"""

import os
from collections.abc import Callable, Iterable, Mapping

from perfwatch.recording.redaction import redact_command
from perfwatch_probes import readings as r
from perfwatch_probes.deadline import Caller
from perfwatch_probes.endings import Endings
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import children_of, ended, identify, read_stat, scan, told, tree
from perfwatch_probes.software import software
from perfwatch_probes.stat import Stat

SETTLED_SECONDS = 30.0  # after its start: exec done, torch imported (measured: 2 to 8 s on a busy machine)


class Family:
    """The processes of one job.

    Args:
        filesystem: where /proc is.
        child: where reads that may block are made.
        guests: meet each process before anything that it says is used.
        clock: monotonic seconds.
        endings: holds handles on the processes that live; None where /proc is not this machine's own.

    Attributes:
        known: those that live, by pid, as last identified.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        child: Caller,
        guests: Guests,
        clock: Callable[[], float],
        endings: Endings | None = None,
    ) -> None:
        self.known: dict[int, r.Process] = {}
        self._filesystem = filesystem
        self._child, self._guests = child, guests
        self._endings = endings
        self._clock = clock
        self._expected: dict[int, r.Process] = {}  # roots that were seen before the first look
        self._roots: dict[int, int] = {}  # by pid, when it started
        self._zombies: set[int] = set()  # dead and told, but still in the process table
        self._identified: dict[int, float] = {}  # when first identified, on our clock
        self._software_told = False
        self._own_pid = os.getpid()  # below a shell that is watched, we are not part of the job

    def expect(self, process: r.Process) -> None:
        """Tell who a root is, from a look before: it may end, and its pid be reused, before the first scan."""
        self._expected[process.pid] = process
        self._roots[process.pid] = process.start_ticks

    def follow(self, roots: Iterable[int]) -> list[r.Reading]:
        """Scan the tree(s): those who are new, and those who have ended."""
        stats = scan(self._filesystem)
        children = children_of(stats)
        self._zombies.intersection_update(pid for pids in children.values() for pid in pids)
        children.pop(self._own_pid, None)  # our helpers are no part of it either
        found: list[r.Reading] = [*self.ended(stats)]
        pids = dict.fromkeys(pid for root in roots for pid in self._tree(root, children))
        orphans = [pid for pid in self.known if pid not in pids]  # their parent died; they are still the job's
        for pid in [*pids, *orphans]:
            found += self._identify(pid)
        return found + self._missed() + self._software()

    def _software(self) -> list[r.Reading]:
        """What the job runs with, of the first process that has torch loaded: the others were started from it."""
        for process in () if self._software_told else self.known.values():
            if process.torch_loaded:
                self._software_told = True
                try:
                    return [software(self._filesystem, process.pid, self._child, self._guests)]
                except Unavailable:
                    break
        return []

    def ended(self, stats: Mapping[int, Stat] | None = None) -> list[r.ProcessEnded]:
        """Those who have ended since the last look: one read per known process that ``stats``, of a scan just made, has not."""
        seen = stats or {}
        return [
            one for known in list(self.known.values()) if (one := self._gone(known, seen.get(known.pid))) is not None
        ]

    def _gone(self, process: r.Process, seen: Stat | None = None) -> r.ProcessEnded | None:
        try:
            gone = ended(self._filesystem, process, seen)
        except Unavailable:
            return None  # hidden from us: the next scan of the tree decides
        return None if gone is None else self._bury(gone)

    def _bury(self, gone: r.ProcessEnded) -> r.ProcessEnded:
        """Forget a process that has ended; /proc tells how while it is a zombie, the handle on it afterwards."""
        self.known.pop(gone.pid, None)
        self._identified.pop(gone.pid, None)
        if gone.zombie:
            self._zombies.add(gone.pid)
        status = self._release(gone.pid)
        silent = gone.exit_code is None and gone.signal is None  # also a zombie that was reaped while we read of it
        return told(gone, status) if silent and status is not None else gone

    def _release(self, pid: int) -> int | None:
        return None if self._endings is None else self._endings.release(pid)

    def _tree(self, root: int, children: dict[int, list[int]]) -> list[int]:
        """The processes at and below a root; none if its pid belongs to another process by now."""
        try:
            start_ticks = read_stat(self._filesystem, root).start_ticks
            if self._roots.setdefault(root, start_ticks) == start_ticks:
                return [pid for pid in tree(self._filesystem, root, children) if pid != self._own_pid]
        except Unavailable:
            pass  # it has ended; those below it that we know are still followed
        return []

    def _identify(self, pid: int) -> list[r.Reading]:
        known = self.known.get(pid)
        if pid in self._zombies or (known is not None and not self._may_change(known)):
            return []
        self._guests.meet(pid)
        try:
            process = identify(self._filesystem, pid, self._child, redact_command)
            if self._endings is not None:
                self._endings.hold(pid)
            gone = ended(self._filesystem, process)
        except Unavailable:
            if known is None:
                self._release(pid)
            return []  # it ended between the scan and now
        if gone is not None:
            return [process, self._bury(gone)]
        self.known[pid] = process
        if known is None or (known.torch_loaded, known.python, known.name) != (
            process.torch_loaded,
            process.python,
            process.name,
        ):
            return [process]
        return []

    def _may_change(self, known: r.Process) -> bool:
        """A process seen between fork and exec, or before its imports, is not yet what it will be."""
        seen = self._clock() - self._identified.setdefault(known.pid, self._clock())
        return not known.torch_loaded and (known.age_seconds or 0.0) + seen < SETTLED_SECONDS

    def _missed(self) -> list[r.Reading]:
        """Roots that ended before the first scan saw them."""
        found: list[r.Reading] = []
        for pid, process in list(self._expected.items()):
            gone = None if pid in self.known else self._gone(process)
            if gone is not None:
                found += [process, gone]
            if gone is not None or pid in self.known:
                del self._expected[pid]
        return found
