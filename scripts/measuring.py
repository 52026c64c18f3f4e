"""What the measurements share: a job that counts its steps, perfwatch beside it, paired comparisons."""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "PERFWATCH_MEASUREMENT"  # in the environment of everything that a measurement starts
PERFWATCH = (sys.executable, "-m", "perfwatch")
BEFORE_OTHERS = ("chrt", "--fifo", "1")  # as on an idle machine, for commands of a second
END_SECONDS = 10.0
# Student's t, two-sided 95 %, by degrees of freedom; beyond the table the next smaller entry (a little too wide).
T_95 = {
    1: 12.71,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    7: 2.36,
    8: 2.31,
    9: 2.26,
    10: 2.23,
    15: 2.13,
    20: 2.09,
    30: 2.04,
}


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """From independent samples; with one sample the interval is unbounded."""
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(mean, -math.inf, math.inf, len(values))
        factor = T_95[max(freedom for freedom in T_95 if freedom <= len(values) - 1)]
        half = factor * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half, len(values))

    def percent(self) -> str:
        """As ``+0.12 % (-0.30 .. +0.54)``."""
        return f"{self.mean:+.2%} ({self.low:+.2%} .. {self.high:+.2%}, n = {self.samples})"


@dataclass(frozen=True)
class Said:
    """One line of the measured loop."""

    at: float
    steps: int
    cpu_seconds: float


@dataclass(frozen=True)
class Usage:
    """What a set of processes has used: CPU seconds so far, memory now (proportional: shared pages are split)."""

    cpu_seconds: float
    memory_bytes: int
    processes: int


class Job:
    """A command that prints the lines of ``measured_loop``, started with or without a perfwatch in front."""

    def __init__(self, command: Sequence[str], errors: Path, new_session: bool = True) -> None:
        self.mark = uuid.uuid4().hex
        self._stderr = errors.open("ab")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=new_session,
            env={**os.environ, MARK: self.mark},
        )
        self._lines: list[Said] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(Said(**json.loads(line)))

    def wait_for_steps(self, steps: int, deadline_seconds: float = 120.0) -> None:
        """Wait until the loop has made so many steps. Raises RuntimeError when it does not."""
        give_up = time.monotonic() + deadline_seconds
        while not any(said.steps >= steps for said in self._lines):
            if time.monotonic() > give_up or self.process.poll() is not None:
                raise RuntimeError(f"the measured loop does not run; see {self._stderr.name}")
            time.sleep(0.05)

    def rate(self, first: float, last: float) -> tuple[float, float]:
        """Steps per second and CPU seconds per step between two moments of the monotonic clock."""
        inside = [said for said in self._lines if first <= said.at <= last]
        steps = inside[-1].steps - inside[0].steps
        return steps / (inside[-1].at - inside[0].at), (inside[-1].cpu_seconds - inside[0].cpu_seconds) / steps

    def end(self) -> None:
        """Kill what carries our mark, and reap."""
        for process in marked(self.mark):
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.process.wait(timeout=END_SECONDS)
        self._reader.join(timeout=END_SECONDS)
        self._stderr.close()


@contextmanager
def job(command: Sequence[str], errors: Path, new_session: bool = True) -> Iterator[Job]:
    """Start a job, by default in a session of its own, and wait for its first line; it ends with the block."""
    started = Job(command, errors, new_session)
    try:
        started.wait_for_steps(1)
        yield started
    finally:
        started.end()


def watcher(pid: int, session: Path, errors: Path) -> AbstractContextManager[psutil.Process]:
    """``perfwatch attach PID --watch`` for the length of the block."""
    return beside(("attach", str(pid), "--watch", "--session", str(session)), errors)


@contextmanager
def beside(arguments: Sequence[str], errors: Path) -> Iterator[psutil.Process]:
    """``perfwatch`` with these arguments for the length of the block, ended as a user would: Ctrl-C."""
    with errors.open("ab") as stderr:
        process = subprocess.Popen(
            (*PERFWATCH, *arguments), stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, start_new_session=True
        )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def halted(root: psutil.Process) -> Iterator[None]:
    """Stop a process of ours and all that it started, for the length of the block."""
    held = tree(root)
    try:
        for process in held:
            process.suspend()
        yield
    finally:
        for process in reversed(held):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and all its descendants."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def marked(mark: str) -> list[psutil.Process]:
    """Every process that carries this mark in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended, or another user's: not ours
    return found


def usage(processes: Sequence[psutil.Process]) -> Usage:
    """Add up CPU (with that of children already reaped) and proportional memory."""
    cpu, memory, count = 0.0, 0, 0
    for process in processes:
        try:
            times = process.cpu_times()
            memory += process.memory_full_info().pss
        except (psutil.Error, OSError):
            continue
        cpu += times.user + times.system + times.children_user + times.children_system
        count += 1
    return Usage(cpu, memory, count)
