"""A running drill: started in its own session, observed through a FIFO, ended with all processes that it started.

No other process is ever signalled. A process belongs to the drill if it descends from it, or has the FIFO's path in its environment:
orphaned ranks and forked servers are outside the tree by the time they must end.
"""

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from perfwatch.drills.drill import Drill
from perfwatch.gauntlet.conditions import LOOK_SECONDS

PRINTED = re.compile(rb"^ONSET\s*$", re.MULTILINE)
FIFO_VARIABLE = "PERFWATCH_DRILL_FIFO"
SWEEPS = 20  # a process may fork while it is being ended; each sweep takes what is left
SWEEP_SECONDS = 1.0
LAST_WORDS_BYTES = 2000


class BrokenDrillError(Exception):
    """The program itself failed before its fault began: nothing that perfwatch could be right or wrong about."""


@dataclass(frozen=True)
class Onset:
    """One "the fault begins now", on the machine's monotonic clock, and the process that said it."""

    at: float
    pid: int


def command_of(drill: Drill, strength: str, python: str) -> list[str]:
    """The command that starts a drill: plain Python, or torchrun where it has several ranks."""
    program = [str(drill.path), *drill.arguments, *(("--strength", strength) if strength else ())]
    if drill.ranks == 1:
        return [python, *program]
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(drill.ranks), *program]


class Program:
    """A running drill; a context manager that leaves no process behind.

    Args:
        command: what to start; its output goes to ``folder/output.txt``, its input is empty.
        folder: an existing folder for the FIFO and the output. The path must be new for each program.
        environment: variables besides our own.
        prints_onset: its fault begins with a line ``ONSET`` of its output; it knows nothing of the FIFO.

    Start it from a thread that stays: the program dies with the thread that started it.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        prints_onset: bool = False,
    ) -> None:
        self.folder, self._prints_onset = folder, prints_onset
        self._fifo_path = folder / "onset"
        os.mkfifo(self._fifo_path, 0o600)
        self._fifo = os.open(self._fifo_path, os.O_RDWR | os.O_NONBLOCK)  # O_RDWR: never at end of file
        self._unread = b""
        self._onsets: list[Onset] = []
        with (folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {}), FIFO_VARIABLE: str(self._fifo_path)},
            )
        self.pid = self._process.pid

    def __enter__(self) -> "Program":
        """Return the program itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.end()

    @property
    def onsets(self) -> tuple[Onset, ...]:
        """Every onset heard so far."""
        self._listen()
        if self._prints_onset and not self._onsets and PRINTED.search((self.folder / "output.txt").read_bytes()):
            self._onsets.append(Onset(at=time.monotonic(), pid=self.pid))
        return tuple(self._onsets)

    def wait_for_onset(self, deadline_seconds: float, interrupted: Callable[[], bool] = bool) -> Onset:
        """Wait until the fault begins, or until ``interrupted`` says that the attempt is over.

        Raises:
            BrokenDrillError: the program ended, or the deadline passed, before it did.
        """
        give_up = time.monotonic() + deadline_seconds
        poll = select.poll()
        poll.register(self._fifo, select.POLLIN)
        while not self.onsets:
            if time.monotonic() > give_up or interrupted():
                raise BrokenDrillError(f"no onset within {deadline_seconds:.0f} s; last output:\n{self.last_words()}")
            ended = self._process.poll() is not None
            if not poll.poll(LOOK_SECONDS * 1000) and ended:
                raise BrokenDrillError(f"ended before its fault began; last output:\n{self.last_words()}")
        return self._onsets[0]

    def ended(self, patience_seconds: float) -> bool:
        """True if the program ends within ``patience_seconds``."""
        try:
            self._process.wait(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self) -> str:
        """The end of what the program printed."""
        return (self.folder / "output.txt").read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()

    def tree(self) -> list[psutil.Process]:
        """Every process of the program that is alive now, itself first."""
        found: dict[int, psutil.Process] = {}
        try:
            root = psutil.Process(self.pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
        except psutil.NoSuchProcess:
            pass  # already reaped: only strays can be left
        for process in psutil.process_iter():
            if process.pid not in found and _environment(process).get(FIFO_VARIABLE) == str(self._fifo_path):
                found[process.pid] = process
        return [process for process in found.values() if _alive(process)]

    def child(self) -> int | None:
        """The oldest child's PID: the job itself, where the program is ``perfwatch run``."""
        try:
            return next((child.pid for child in psutil.Process(self.pid).children()), None)
        except psutil.NoSuchProcess:
            return None

    def traced(self) -> set[int]:
        """PIDs of the program that have a tracer now: perfwatch must leave none behind."""
        return {process.pid for process in self.tree() if _tracer(process.pid)}

    def end(self) -> None:
        """Kill what is left of it, reap it, remove the FIFO. May be called again."""
        self._listen()
        for _ in range(SWEEPS):
            left = self.tree()
            if not left:
                break
            for process in left:
                try:
                    process.send_signal(signal.SIGKILL)  # psutil checks that the PID was not reused
                except psutil.NoSuchProcess:
                    continue
            self._process.poll()
            give_up = time.monotonic() + SWEEP_SECONDS
            while any(map(_alive, left)) and time.monotonic() < give_up:
                time.sleep(0.01)  # a zombie of another parent stays: not alive, and not waited for
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            pass  # in an uninterruptible sleep; it ends when the kernel lets it
        if self._fifo >= 0:
            os.close(self._fifo)
            self._fifo = -1
            self._fifo_path.unlink(missing_ok=True)

    def _listen(self) -> None:
        while self._fifo >= 0:
            try:
                self._unread += os.read(self._fifo, 65536)
            except BlockingIOError:
                break
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            said = json.loads(line)
            self._onsets.append(Onset(at=float(said["onset"]), pid=int(said["pid"])))


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}  # ended, or another user's: not ours


def _tracer(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid:")), 0)
