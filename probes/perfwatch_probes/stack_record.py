"""What the threads of a process executed over some seconds: one ``py-spy record --nonblocking --idle --threads``.

Cheaper than many dumps, because py-spy finds the interpreter once. The format is chrometrace, the only one of py-spy's
four that keeps all that we need (tried with 0.4.3):

============  ==========  =====  ====================  =====================
format        full path   line   when                  thread
============  ==========  =====  ====================  =====================
chrometrace   yes         yes    microseconds, true    OS thread id and name
speedscope    shortened   yes    invented, even steps  OS thread id and name
raw           shortened   yes    no                    OS thread id and name
flamegraph    shortened   yes    no                    OS thread id and name
============  ==========  =====  ====================  =====================

Chrometrace writes an event where a stack changes, not one per sample, so ``Stack.samples`` is the span times the rate,
at least 1. py-spy draws its sampling moments at random (no beat with a periodic loop), so that a "3 s" record at 20 Hz
ended after 2.5 to 3.7 s: the clock in the file is right, the nominal duration is not. Interrupted (SIGINT to py-spy,
never to the job), or when the job ends, it still writes what it has. No format tells who owns the GIL (``--gil`` drops
every other thread: not used); ``--native`` pauses the job: not used.

Measured on a PyTorch training loop on 2 cores, 3 s: 0.05 CPU s at 20 Hz, 0.08 at 50 Hz, 0.13 at 100 Hz (60 dumps:
0.82); 220 steps/s before, during and after.
"""

import itertools
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from perfwatch_probes.external import LEFT_BEHIND, Finished, kill, reap, start
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Frame, Stack
from perfwatch_probes.stacks import MISSING_ADVICE, Stacks

STOP_AFTER_SECONDS = 0.5  # beyond the nominal duration: random sampling moments make records late
KILL_AFTER_SECONDS = 3.0
OUTPUT_LIMIT_BYTES = 32 * 2**20  # 3 s of a training loop at 20 Hz are 46 kB
_THREAD = re.compile(r"thread \((0[xX][0-9a-fA-F]+|\d+)\)(?:: (.*))?$", re.S)  # an id, or the pthread handle


class Recorded:
    """A record under way. Poll it; it never prints, and it dies with us.

    Attributes:
        pid: the process that is being recorded.
        cpu_seconds: what py-spy used, once it has ended.
    """

    def __init__(
        self, pid: int, seconds: float, rate_hz: int, stacks: Stacks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if stacks.command is None:
            raise Unavailable("py-spy is not installed", MISSING_ADVICE)
        stacks.refuse(pid)
        self.pid, self._seconds, self._rate_hz, self._stacks, self._clock = pid, seconds, rate_hz, stacks, clock
        self.cpu_seconds: float | None = None
        self._interrupted = False
        # No disk that could hang, nothing left behind if we are killed.
        self._memory = os.memfd_create("perfwatch-record")
        command = [
            *(stacks.command, "record", "--nonblocking", "--idle", "--threads", "--format", "chrometrace"),
            *("--rate", str(rate_hz), "--duration", str(max(1, math.ceil(seconds))), "--full-filenames"),
            *("--output", f"/proc/self/fd/{self._memory}", "--pid", str(pid)),
        ]
        self._began = self._clock()
        try:
            self._child = start(command, pass_fds=(self._memory,))
        except Unavailable:
            os.close(self._memory)
            raise
        stacks.calls += 1

    def poll(self) -> list[tuple[float, Stack]] | None:
        """None while it runs; then, once, (how many seconds ago its span ended, stack), oldest first.

        Threads that are gone by now are left out: py-spy shows the last stack of each until the end of the record.

        Raises Unavailable when py-spy failed, was late, or wrote nothing.
        """
        if self.cpu_seconds is None:
            self.cpu_seconds = reap(self._child, 0.0)
            if self.cpu_seconds is None and not self._late():
                return None
        try:
            if self._child.returncode != 0:
                raise self._failure()
            written = os.fstat(self._memory)
            if written.st_size > OUTPUT_LIMIT_BYTES:
                raise Unavailable(f"the record of pid {self.pid} is larger than {OUTPUT_LIMIT_BYTES >> 20} MiB")
            ended_ago_seconds = max(0.0, time.time() - written.st_mtime)
            events = json.loads(os.pread(self._memory, written.st_size, 0))
            stacks = list(parse_chrometrace(events, self.pid, self._rate_hz))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"py-spy's record of pid {self.pid} cannot be read: {error}") from error
        finally:
            self.kill()
        tids = self._stacks.thread_ids.resolve(self.pid, {stack.tid for _, stack in stacks})
        return [
            (before_end + ended_ago_seconds, msgspec.structs.replace(stack, tid=tids[stack.tid]))
            for before_end, stack in stacks
            if tids[stack.tid]
        ]

    def kill(self) -> None:
        """End the record (our own child, never the job); harmless when it has ended."""
        if self._child.returncode is None:
            kill(self._child)
            if (used := reap(self._child, 0.2)) is None:
                LEFT_BEHIND.add(self._child.pid, self.pid)
            self.cpu_seconds = used or 0.0
            self._child.returncode = -signal.SIGKILL
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _late(self) -> bool:
        """Ask a late py-spy to write what it has, then kill it."""
        elapsed_seconds = self._clock() - self._began
        if elapsed_seconds > self._seconds + KILL_AFTER_SECONDS:
            self.kill()
            raise Unavailable(f"py-spy record of pid {self.pid} was late by {KILL_AFTER_SECONDS:.0f} s and was killed")
        if elapsed_seconds > self._seconds + STOP_AFTER_SECONDS and not self._interrupted:
            self._interrupted = True
            self._child.send_signal(signal.SIGINT)
        return False

    def _failure(self) -> Unavailable:
        assert self._child.stderr is not None
        text = self._child.stderr.read(1 << 16).decode(errors="replace")
        seconds = self._clock() - self._began
        problem = self._stacks.failure(self.pid, Finished(self._child.returncode, b"", text, seconds))
        if isinstance(problem, Unavailable):
            return problem
        return Unavailable(f"py-spy could not start on pid {self.pid}: {problem.message}")


def start_record(pid: int, seconds: float, rate_hz: int, stacks: Stacks | None = None) -> Recorded:
    """Start recording a process for whole seconds (at least 1). Raises Unavailable without a py-spy that starts."""
    return Recorded(pid, seconds, rate_hz, stacks or Stacks())


def parse_chrometrace(events: list[dict[str, Any]], pid: int, rate_hz: float) -> Iterator[tuple[float, Stack]]:
    """(seconds before the end of the record at which it ended, stack), in the order in which they ended.

    Each begin/end event changes the stack of its thread; what stood between two changes is one Stack.
    """
    last = max((event["ts"] for event in events), default=0)
    open_frames: dict[int, list[dict[str, Any]]] = {}
    since: dict[int, int] = {}
    changes = sorted((event for event in events if event["ph"] in "BE"), key=lambda event: event["ts"])
    for at, together in itertools.groupby(changes, key=lambda event: event["ts"]):
        for event in together:
            thread = event["tid"]
            frames = open_frames.setdefault(thread, [])
            if frames and since[thread] < at:
                yield (last - at) / 1e6, _stack(frames, pid, (at - since[thread]) / 1e6, rate_hz)
            since[thread] = at
            if event["ph"] == "B":
                frames.append(event)
            elif frames:
                frames.pop()


def _stack(frames: list[dict[str, Any]], pid: int, span_seconds: float, rate_hz: float) -> Stack:
    thread = _THREAD.match(frames[0]["name"])
    python = frames[1:] if thread else frames
    return Stack(
        pid=pid,
        tid=int(thread[1], 0) if thread else 0,
        thread=(thread[2] or "") if thread else "",
        frames=tuple(
            Frame(frame["name"], frame["args"]["filename"], frame["args"].get("line") or 0)
            for frame in reversed(python)
        ),
        samples=max(1, round(span_seconds * rate_hz)),
        span_seconds=span_seconds,
    )
