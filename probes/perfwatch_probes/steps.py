"""Optimizer steps, and the last traceback, as the agent inside each rank leaves them in the agent's folder.

The docstring of the agent's ``sitecustomize.py`` says what each file is for. The rank writes the page of steps without a lock or
a system call while we read it: the slot being written is the oldest of 168, and at most the newest 64 intervals are returned.

The steps page: 4096 bytes, little-endian, mapped shared.

=======  =====  =====================================================================================================
offset   type   what
=======  =====  =====================================================================================================
0        8s     ``PWSTEPS2``, written last: without it the page is not ready
8        u32    pid, as the process itself sees it (innermost PID namespace)
12       u32    slots in the ring: 168
16       u64    start time of the process, clock ticks after boot (field 22 of /proc/PID/stat): with pid, the identity
24       u64    when the page was created, nanoseconds of CLOCK_MONOTONIC
32       u32    what was on after the newest step: 1 (torch could be asked), 2 anomaly detection, 4 cuDNN's benchmark
36       28x    zero
64       ring   step number N (from 1) is in slot ``N % 168`` at ``64 + 24 * slot``:
+0       u64    when it ended, nanoseconds of CLOCK_MONOTONIC
+8       u64    thread that ran it (native id, innermost PID namespace); bit 63: of another optimizer than the one that leads
+16      u64    N; 0: slot not used yet. The largest N in the ring is the number of steps so far
=======  =====  =====================================================================================================

While a slot is written it may show an old N with a new time: the oldest slot is left out.

Steps are a hint: several optimizers, an optimizer fused into backward and skipped steps of a GradScaler bend the count. Of several
that take turns the one that steps most often leads: its steps tell how many belong together.
"""

import itertools
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.inner_pids import InnerPids
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Reading, Steps, ThreadError, Traceback
from perfwatch_probes.stat import stat_fields

MAGIC = b"PWSTEPS2"
HEADER = struct.Struct("<8sIIQQI28x")
SLOT = struct.Struct("<QQQ")
PAGE_BYTES = 4096
MOST_INTERVALS = 64
# Pages of ended processes that are read at one look, in turns: the 5,000 of a long sweep took 0.35 s. Not none: the page of a
# process that our /proc does not show looks like one of them, and goes on.
MOST_OVER = 64
MODES_KNOWN = 1
OF_ANOTHER = 1 << 63
FEW_LEADS = 2  # below, how many belong together shows in no turn of this page
MODES = {2: "anomaly_detection", 4: "cudnn_benchmark"}
LONGEST_TRACEBACK_BYTES = 16 * 1024
_PAGE_NAME = re.compile(r"steps-(\d+)$")
_CRASH_NAME = re.compile(r"(?:crash-(\d+)|thread-(\d+)-(\d+))\.txt$")
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.M)
_HEADING = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Page:
    """What a page says: who wrote it, and (number, when in ns, thread) of each step that it still holds, ascending.

    modes: what was on after the newest step; None where torch could not be asked. leads: how many of these steps are of the
    optimizer that leads.
    """

    pid: int
    start_ticks: int
    steps: tuple[tuple[int, int, int], ...]
    modes: tuple[str, ...] | None = None
    leads: int = 0


class StepCounter:
    """Reads the pages of every rank that the agent has armed.

    Args:
        folder: the agent's folder (0700, on a local file system).
        redact: takes secrets out of a traceback.
        clock_ns: CLOCK_MONOTONIC, the agent's own clock.
        proc: root of /proc, to tell the page of a living process from one that a dead process left.
    """

    NAME = "steps"
    NEEDS = "a job started with perfwatch run (without --no-agent) that imports torch"
    COST = "one read of 4 KiB per rank; 0.1 ms"

    def __init__(
        self,
        folder: AgentFolder,
        redact: Callable[[str], str],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        proc: Path = Path("/proc"),
    ) -> None:
        self._folder, self._redact, self._clock_ns, self._proc = folder, redact, clock_ns, proc
        self._inner = InnerPids(folder.inside, proc) if folder.inside is not None else None
        self._told: dict[str, tuple[int, int, int]] = {}  # of each page: pid, start_ticks, count
        self._over: set[str] = set()  # pages of ended processes, told to the end
        self._turn = 0
        self._crashes_told: dict[str, int] = {}  # when each was written

    def look(self) -> list[Reading]:
        """One Steps per living rank (and a last one for a rank that has ended), and each error once.

        Raises Unavailable when no process has left anything.
        """
        try:
            names = self._folder.names()
        except OSError as error:
            raise Unavailable(
                f"the agent's folder cannot be read: {error.strerror}", "start the job with perfwatch run"
            ) from error
        pages = [name for name in names if _PAGE_NAME.match(name)]
        crashes = [name for name in names if _CRASH_NAME.match(name)]
        if not pages and not crashes:
            raise Unavailable("no process of the job has taken an optimizer step under the agent so far")
        return [*self._steps(pages), *self._crashes(crashes)]

    def _steps(self, names: list[str]) -> Iterator[Steps]:
        self._told = {name: self._told[name] for name in names if name in self._told}
        for name, (_, content) in self._folder.tails(self._due(names), PAGE_BYTES).items():
            try:
                page = parse_page(content)
            except ValueError:
                continue  # being created
            if self._inner is not None:
                pid = self._inner.outer(page.pid, page.start_ticks)
                if pid is None:
                    continue  # it has ended, or is none of this container
                page = replace(page, pid=pid)
            identity = (page.pid, page.start_ticks)
            told = self._told.get(name)
            before = told[2] if told is not None and told[:2] == identity else None
            steps = count_steps(page, self._clock_ns(), before or 0)
            if steps.count == before and self._started(page.pid) != page.start_ticks:
                self._over.add(name)
                continue  # left by a process that has ended, and told
            self._over.discard(name)
            self._told[name] = (*identity, steps.count)
            if self._inner is not None:
                steps = msgspec.structs.replace(steps, tid=self._inner.outer_thread(page.pid, steps.tid) or page.pid)
            yield steps

    def _due(self, names: list[str]) -> list[str]:
        over = [name for name in names if name in self._over]
        self._over = set(over)
        first = self._turn % len(over) if len(over) > MOST_OVER else 0
        self._turn = first + MOST_OVER
        read = set((over + over)[first : first + MOST_OVER])
        return [name for name in names if name not in self._over or name in read]

    def _crashes(self, names: list[str]) -> Iterator[Traceback | ThreadError]:
        self._crashes_told = {name: self._crashes_told[name] for name in names if name in self._crashes_told}
        for name, (written, content) in self._folder.tails(names, LONGEST_TRACEBACK_BYTES).items():
            if self._crashes_told.get(name) == written:
                continue
            ago = max(0.0, (time.time_ns() - written) / 1e9)
            try:
                error = parse_crash(name, content, self._redact, round(ago, 3))
            except ValueError:
                continue  # being written
            if self._inner is not None:
                if (pid := self._inner.outer(error.pid)) is None:
                    continue  # of a process whose steps were never read
                error = msgspec.structs.replace(error, pid=pid)
            yield error
            self._crashes_told[name] = written

    def _started(self, pid: int) -> int | None:
        try:
            return int(stat_fields(self._proc / str(pid))[19])
        except (OSError, ValueError, IndexError):
            return None


def parse_page(page: bytes) -> Page:
    """The bytes of ``steps-PID``. Raises ValueError when it is no such page (yet)."""
    if len(page) < PAGE_BYTES or page[:8] != MAGIC:
        raise ValueError("not a page of steps")
    _, pid, slots, start_ticks, _, bits = HEADER.unpack_from(page)
    slots = min(slots, (PAGE_BYTES - HEADER.size) // SLOT.size)
    ring = (SLOT.unpack_from(page, HEADER.size + SLOT.size * slot) for slot in range(slots))
    told = sorted((number, when, thread) for when, thread, number in ring if number)
    steps = tuple((number, when, thread & ~OF_ANOTHER) for number, when, thread in told)
    leads = sum(not thread & OF_ANOTHER for _, _, thread in told)
    modes = tuple(name for bit, name in MODES.items() if bits & bit) if bits & MODES_KNOWN else None
    return Page(pid, start_ticks, steps, modes, leads)


def count_steps(page: Page, now_ns: int, count_before: int = 0) -> Steps:
    """The reading.

    Args:
        page: what ``parse_page`` returned.
        now_ns: CLOCK_MONOTONIC of the read.
        count_before: the count of the reading before this one; the intervals that ended since are returned.
    """
    if not page.steps:
        return Steps(pid=page.pid, tid=page.pid, count=0)
    count, newest_ns, tid = page.steps[-1]
    recent = [step for step in page.steps if step[0] >= count_before]
    intervals = tuple(
        (late - early) / 1e9
        for (one, early, _), (next_one, late, _) in itertools.pairwise(recent)
        if next_one == one + 1
    )
    return Steps(
        pid=page.pid,
        tid=tid,
        count=count,
        step_ago_seconds=max(0.0, (now_ns - newest_ns) / 1e9),
        interval_seconds=intervals[-MOST_INTERVALS:],
        longest_seconds=max(intervals, default=None),
        modes=page.modes,
        steps_each_turn=_steps_each_turn(page),
    )


def _steps_each_turn(page: Page) -> float | None:
    if page.leads == len(page.steps):
        return 1.0
    return round(len(page.steps) / page.leads, 2) if page.leads >= FEW_LEADS else None


def parse_crash(
    file: str, content: bytes, redact: Callable[[str], str], ago_seconds: float | None = None
) -> Traceback | ThreadError:
    """The content of such a file of errors; ``exception`` names the last of the chain (the first line after its frames).

    Raises ValueError when nothing is written yet, and for any other file's name.
    """
    named = _CRASH_NAME.match(file)
    if named is None:
        raise ValueError(f"no file of errors: {file}")
    text = content.decode(errors="replace")
    if not text.strip():
        raise ValueError("the traceback is not written yet")
    found = _EXCEPTION.search(text.rpartition(_HEADING)[2].partition("\n")[2] if _HEADING in text else text)
    exception, text = found[1] if found else "", redact(text)
    if named[1]:
        return Traceback(pid=int(named[1]), exception=exception, text=text, ago_seconds=ago_seconds)
    return ThreadError(pid=int(named[2]), tid=int(named[3]), exception=exception, text=text)
