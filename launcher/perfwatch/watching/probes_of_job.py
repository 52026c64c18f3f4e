"""All probes of one live job. Each call is timed and its outcome recorded; no exception of a probe leaves this module.

``perfwatch.watching.watch`` decides which processes are sampled and when. Triage decides what the readings mean.
"""

import re
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import UnionType

from perfwatch.recording.redaction import redact
from perfwatch.watching.blocked_descriptors import Behind
from perfwatch.watching.gpus import Gpus
from perfwatch.watching.novelty import Novelty
from perfwatch.watching.process_tree import Family
from perfwatch.watching.thread_choice import ThreadChoice
from perfwatch_probes import readings as r
from perfwatch_probes.affinity import AffinityProbe
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.cgroup import CgroupProbe
from perfwatch_probes.cpu_clock import CpuClocks
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.endings import Endings
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import GpuProbe
from perfwatch_probes.gpu_binding import GpuBindingProbe
from perfwatch_probes.guest import Guests
from perfwatch_probes.host import HostProbe
from perfwatch_probes.kernel_log import KernelLogProbe
from perfwatch_probes.native import NativeProbe, NativeRecord
from perfwatch_probes.network import NetworkProbe
from perfwatch_probes.output import OutputProbe
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import usage
from perfwatch_probes.source import SourceProbe
from perfwatch_probes.stack_record import Recorded, start_record
from perfwatch_probes.stacks import Stacks
from perfwatch_probes.steps import StepCounter
from perfwatch_probes.storage import StorageProbe
from perfwatch_probes.thread import threads

RECORD_HZ = 20
STACKS = r.Stack | r.StackFailure


class Look:
    """All probes of one job.

    Args:
        agent_folder: where the agent writes, when the job was started armed.
        filesystem: where /proc and /sys are.
        gpus: asks the NVIDIA driver, when there is one.
        sink: takes the readings of each call, as they come.
        clock: monotonic seconds, for the durations.
    """

    def __init__(
        self,
        sink: Callable[[Sequence[r.Reading]], None],
        agent_folder: AgentFolder | None = None,
        filesystem: Filesystem | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpus: GpuProbe | None = None,
    ) -> None:
        self.filesystem = filesystem or Filesystem()
        self.child = KillableChild()
        self.guests = Guests(self.filesystem.proc)
        self.stacks = Stacks(redact=redact)
        self.endings = Endings()
        self._family = Family(
            self.filesystem, self.child, self.guests, clock, self.endings if filesystem is None else None
        )
        self.known = self._family.known
        self.records: list[Recorded | NativeRecord] = []
        self._sink = sink
        self._clock = clock
        self._clocks = CpuClocks(self.child)
        self._steps = StepCounter(agent_folder, redact) if agent_folder else None
        self._host = HostProbe(self.filesystem, self.guests)
        self._cgroup = CgroupProbe(self.filesystem)
        self._network = NetworkProbe(self.filesystem)
        self._storage = StorageProbe(self.filesystem)
        self._affinity = AffinityProbe()
        self._kernel_log = KernelLogProbe()
        self._output = OutputProbe(self.child, self.guests, self.filesystem)
        self._source = SourceProbe(self.guests)
        self._native = NativeProbe(guests=self.guests)
        self._behind = Behind(self.filesystem, self.child, self.guests, self.take)
        bindings = GpuBindingProbe(self.filesystem)
        self.gpus = Gpus(gpus or GpuProbe(filesystem=self.filesystem, clock=clock), bindings, sink, clock)
        self._novelty = Novelty(clock)
        self._choice = ThreadChoice(self.filesystem, clock, sink)
        self._failed: dict[tuple[str, str], str] = {}
        self._python: dict[int, set[int]] = {}  # by pid: threads of which a Python stack was read

    def take(
        self, probe: str, entity: str, read: Callable[[], Iterable[r.Reading]], wanted: UnionType | None = None
    ) -> list[r.Reading]:
        """One call of one probe: its readings, and how it went. A failure is recorded when it is new.

        wanted: a call that brought nothing of this kind brought its reasons, and counts as none.
        """
        began, used = self._clock(), _cpu_seconds()
        outcome, reason, advice = "ok", "", ""
        found: list[r.Reading] = []
        try:
            found = list(read())
        except Unavailable as why:
            outcome, reason, advice = "unavailable", why.reason, why.advice
        except Exception as error:  # a state of the world that the probe did not foresee, or a bug of it
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
        if outcome == "ok" and wanted and not any(isinstance(one, wanted) for one in found):
            outcome = "absent"
        call = r.ProbeCall(
            probe=probe,
            entity=entity,
            duration_seconds=round(self._clock() - began, 6),
            cpu_seconds=round(_cpu_seconds() - used, 6),
            outcome=outcome,
            reason=reason,
            advice=advice,
        )
        if outcome in ("ok", "absent") or self._failed.get((probe, entity)) != reason:
            self._sink([*found, call])
        self._failed[probe, entity] = reason
        return found

    def processes(self, roots: Iterable[int]) -> list[int]:
        """Follow the tree(s): identify new processes, notice ended ones; returns the pids that live."""
        self.take("process", "job", lambda: self._family.follow(roots))
        self._python = {pid: tids for pid, tids in self._python.items() if pid in self.known}
        return list(self.known)

    def expect(self, process: r.Process) -> None:
        """Tell who a root is, from a look before: it may end, and its pid be reused, before ours."""
        self._family.expect(process)

    def ended(self) -> None:
        """Notice processes that ended since the last look: one read per known process."""
        try:
            gone = self._family.ended()
        except Exception as error:
            self.take("process", "job", partial(_raise, error))
        else:
            if gone:
                self._sink(gone)

    def usage(self, pids: Iterable[int]) -> None:
        """One aggregate per process."""
        for pid in pids:
            self.take("usage", f"pid {pid}", lambda pid=pid: [usage(self.filesystem, pid)])  # type: ignore[misc]

    def steps(self) -> list[r.Reading]:
        """What the agent counted, and its last tracebacks."""
        return self.take("steps", "agent", self._steps.look) if self._steps else []

    def threads(self, pid: int, tids: Iterable[int] | None = None) -> list[r.Thread]:
        """Full readings of a process' threads (at most so many, the main one first).

        All are returned; recorded are those in which something changed, and the others now and then.
        """
        chosen = list(tids) if tids is not None else self._choose(pid)
        all_of_them: list[r.Thread] = []

        def sweep() -> list[r.Reading]:
            all_of_them.extend(
                threads(self.filesystem, pid, full=True, child=self.child, clocks=self._clocks, tids=chosen)
            )
            return [one for one in all_of_them if self._novelty.is_news(one)]

        self.take("thread", f"pid {pid}", sweep)
        return all_of_them

    def _choose(self, pid: int) -> list[int]:
        try:
            tids = sorted(self.filesystem.tasks(pid))
        except Unavailable:
            return [pid]
        self._python[pid] = self._python.get(pid, set()).intersection(tids)
        return self._choice.choose(pid, tids, self._python[pid])

    def _remember(self, found: Iterable[r.Reading]) -> None:
        for one in found:
            if isinstance(one, r.Stack):
                self._python.setdefault(one.pid, set()).add(one.tid)

    def behind(self, found: Iterable[r.Thread], awaited: Mapping[int, str] | None = None) -> None:
        """The open files that blocked threads wait on, the paths that they open, and those that processes look for."""
        self._behind.look(found, self.known, awaited or {})

    def dump(self, pids: Sequence[int], texts: bool = False) -> list[r.Reading]:
        """One stack of every thread of some processes, now."""
        before = self.stacks.cpu_seconds
        found = self.take("stacks", f"{len(pids)} processes", lambda: self.stacks.dump(pids, texts=texts), STACKS)
        self._charge("stacks", self.stacks.cpu_seconds - before)
        self._remember(found)
        return found

    def record(self, pid: int, seconds: float) -> bool:
        """Begin to sample a process for a while; ``collect`` brings the result. False while the last one of it is not done."""
        if any(one.pid == pid for one in self.records if isinstance(one, Recorded)):
            return False

        def begin() -> list[r.Reading]:
            self.records.append(start_record(pid, seconds, RECORD_HZ, self.stacks))
            return []

        self.take("stack_record", f"pid {pid}", begin, STACKS)
        return True

    def collect(self) -> list[tuple[float, r.Reading]]:
        """Finished records: (seconds ago, reading). Their cost is charged."""
        found: list[tuple[float, r.Reading]] = []
        for one in list(self.records):
            try:
                done = one.poll()
            except Exception as error:
                self.records.remove(one)
                self.take("stack_record", f"pid {one.pid}", partial(_raise, error))
                continue
            if done is None:
                continue
            self.records.remove(one)
            self._charge("stack_record", one.cpu_seconds or 0.0)
            if not isinstance(done, r.NativeProfile):
                self.take("stack_record", f"pid {one.pid}", list)  # it was begun before, and counts now
            found += [(0.0, done)] if isinstance(done, r.NativeProfile) else done
        self._remember(reading for _, reading in found)
        return found

    def machine(self, pids: Sequence[int]) -> None:
        """Everything about the machine and the job's share of it."""
        first = pids[0] if pids else None
        self.take("host", "host", lambda: self._host.look(first))
        self.take("network", "host", lambda: self._network.look(first))
        self.take("storage", "host", self._storage.look)
        if first is not None:
            self.take("cgroup", f"pid {first}", lambda: self._cgroup.look(first))
        self.take("affinity", "job", lambda: self._affinity.look(pids))
        self.kernel_log()

    def traffic(self, ranks: Sequence[int]) -> None:
        """What the connections of several ranks carry; one alone sends nothing to others."""
        self._behind.traffic(ranks if len(ranks) > 1 else ())

    def kernel_log(self) -> None:
        """What the kernel has said since the last look."""
        self.take("kernel_log", "host", self._kernel_log.look)

    def output(self, pids: Sequence[int]) -> None:
        """Regular files that processes hold open for writing."""
        for pid in pids:
            self.take("output", f"pid {pid}", lambda pid=pid: self._output.look([pid]))  # type: ignore[misc]

    def source(self, pid: int, frame: r.Frame) -> None:
        """The text of a line of the job's code, once."""
        self.take("source", f"{frame.file}:{frame.line}", lambda: self._source.look(pid, frame.file, frame.line))

    def native(self, pid: int, tid: int) -> None:
        """Begin to profile a thread's native code; ``collect`` brings the result."""

        def begin() -> list[r.Reading]:
            self.records.append(self._native.start(pid, tid))
            return []

        self.take("native", f"pid {pid} tid {tid}", begin)

    def forget(self, seconds: float) -> None:
        """Let go of what is remembered about those who have ended, and of threads not recorded for so long."""
        self._novelty.forget(seconds)
        gone = re.compile(r"pid (\d+)\b")
        self._failed = {
            key: why
            for key, why in self._failed.items()
            if (named := gone.match(key[1])) is None or int(named[1]) in self.known
        }
        self._behind.forget(self.known)
        self.guests.forget(self.known)
        self._choice.forget(self.known)
        self.stacks.thread_ids.forget(self.known)

    def close(self) -> None:
        """End our own children, and let go of the kernel's log."""
        for one in self.records:
            one.kill()
        self.gpus.close()
        self._kernel_log.close()
        self.endings.close()
        self.guests.close()
        self.child.close()

    def _charge(self, probe: str, cpu_seconds: float) -> None:
        spent = round(cpu_seconds, 6)
        self._sink([r.ProbeCall(probe=probe, entity="py-spy", duration_seconds=0.0, cpu_seconds=spent, outcome="ok")])


def _raise(error: Exception) -> list[r.Reading]:
    raise error


def _cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime
