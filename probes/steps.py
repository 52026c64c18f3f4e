"""Optimizer steps, and the last traceback, as the agent inside each rank leaves them in the agent's folder.

``steps-<pid>``, little-endian, shared memory of the rank (written without any lock or system call, ~100 ns a step)::

    0   8s    magic b"PWSTEPS1"
    8   u64   pid, as the rank itself sees it
    16  u64   tid of the thread that runs the steps
    24  u64   count of steps so far, written last
    32  u64   CLOCK_MONOTONIC of the newest step, ns
    40  u64 x 256   ring: step number n (from 1) is at slot (n - 1) % 256, ns

``crash-<pid>.txt``: the traceback that ended the rank, at most 16 KiB, UTF-8.

A page is read while the rank writes it: a slot can already belong to a later step. Times that do not ascend are dropped.
Steps are a hint: several optimizers, an optimizer fused into backward and skipped steps of a GradScaler bend the count.
"""

import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Reading, Steps, Traceback

MAGIC = b"PWSTEPS1"
HEADER = struct.Struct("<8s4Q")
RING_SLOTS = 256
PAGE_BYTES = HEADER.size + 8 * RING_SLOTS
MOST_INTERVALS = 64
LONGEST_TRACEBACK_BYTES = 16 * 1024
_PAGE_NAME = re.compile(r"steps-(\d+)$")
_CRASH_NAME = re.compile(r"crash-(\d+)\.txt$")
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.M)
_HEADING = "Traceback (most recent call last)"


class StepCounter:
    """Reads the pages of every rank that the agent has armed.

    Args:
        folder: the agent's folder (our own, 0700, on a local file system).
        redact: takes secrets out of a traceback.
        clock_ns: CLOCK_MONOTONIC, as the agent's own clock.
    """

    NAME = "steps"
    NEEDS = "a job started with perfwatch run (without --no-agent) that imports torch"
    COST = "one read of 2 KiB per rank; 60 us"

    def __init__(
        self,
        folder: Path,
        redact: Callable[[str], str],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._folder = folder
        self._redact = redact
        self._clock_ns = clock_ns
        self._counts: dict[int, int] = {}
        self._told: set[str] = set()

    def look(self) -> Iterator[Reading]:
        """One Steps per rank, and each crash once. Raises Unavailable when no rank has been armed."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError as error:
            raise Unavailable(
                f"the agent's folder cannot be read: {error.strerror}", "start the job with perfwatch run"
            ) from error
        pages = [name for name in names if _PAGE_NAME.match(name)]
        crashes = [name for name in names if _CRASH_NAME.match(name) and name not in self._told]
        if not pages and not crashes and not self._told:
            raise Unavailable("no process of the job has armed a step counter: none has imported torch yet")
        return iter([*self._steps(pages), *self._crashes(crashes)])

    def _steps(self, names: list[str]) -> Iterator[Steps]:
        for name in names:
            try:
                page = (self._folder / name).read_bytes()[:PAGE_BYTES]
                steps = parse_page(page, self._clock_ns(), self._counts.get(int(name.rpartition("-")[2]), 0))
            except (OSError, ValueError):
                continue  # being created, or not ours
            self._counts[int(name.rpartition("-")[2])] = steps.count
            yield steps

    def _crashes(self, names: list[str]) -> Iterator[Traceback]:
        for name in names:
            try:
                text = (self._folder / name).read_bytes()[-LONGEST_TRACEBACK_BYTES:].decode(errors="replace")
            except OSError:
                continue
            if not text.strip():
                continue  # being written
            self._told.add(name)
            yield parse_crash(int(_CRASH_NAME.match(name)[1]), text, self._redact)  # type: ignore[index]


def parse_page(page: bytes, now_ns: int, count_before: int = 0) -> Steps:
    """Steps in a page.

    Args:
        page: the bytes of ``steps-<pid>``.
        now_ns: CLOCK_MONOTONIC of the read.
        count_before: count of the reading before this one; the intervals of later steps are returned.

    Raises ValueError when it is no such page (yet).
    """
    if len(page) < PAGE_BYTES or page[:8] != MAGIC:
        raise ValueError("not a page of steps")
    _, pid, tid, count, newest_ns = HEADER.unpack_from(page)
    ring = struct.unpack_from(f"<{RING_SLOTS}Q", page, HEADER.size)
    if count < count_before:  # the process replaced itself
        count_before = 0
    first = max(1, count_before, count - RING_SLOTS + 2)  # one slot of margin: the next step may be overwriting it
    times = [ring[(number - 1) % RING_SLOTS] for number in range(first, count + 1)]
    pairs = list(zip(times, times[1:], strict=False))
    intervals = tuple((late - early) / 1e9 for early, late in pairs if late >= early > 0)
    return Steps(
        pid=pid,
        tid=tid,
        count=count,
        step_ago_seconds=max(0.0, (now_ns - newest_ns) / 1e9) if count else None,
        interval_seconds=intervals[-MOST_INTERVALS:],
        longest_seconds=max(intervals, default=None),
    )


def parse_crash(pid: int, text: str, redact: Callable[[str], str]) -> Traceback:
    """The traceback of a rank; ``exception`` names the last exception of the chain (the first line after its frames)."""
    name = _EXCEPTION.search(text.rpartition(_HEADING)[2].partition("\n")[2] if _HEADING in text else text)
    return Traceback(pid=pid, exception=name[1] if name else "", text=redact(text))
