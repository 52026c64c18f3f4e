"""The process in which a capture is made: it may block, be late or die, and neither the watch nor the job notices."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from perfwatch.captures.as_user import take_as_needed
from perfwatch.captures.capture import PTRACE, Capture, Outcome, Request, Scene
from perfwatch.errors import CaptureFailed
from perfwatch.processes.channel import Message
from perfwatch.text import duration
from perfwatch_probes.deadline import become_helper, hold_child, kill_child
from perfwatch_probes.external import limit_memory

LONGEST_LINE_BYTES = 8 * 2**20
DEADLINE_SECONDS = 300.0  # of a whole capture, its reading included; each part of it has a shorter one

LEAVE_SECONDS = 15.0  # of them for what a capture made as another user brings

REAP_SECONDS = 0.2  # a killed process is gone at once, unless it is stuck in the kernel: then it is left behind


class Helper:
    """One capture at work.

    Args:
        capture, request, scene, folder, home: as for ``take``.
        deadline_seconds: after which it is killed.
    """

    def __init__(
        self,
        capture: Capture,
        request: Request,
        scene: Scene,
        folder: Path,
        home: Path,
        deadline_seconds: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.said = ""  # its newest line
        self._clock = clock
        self._ends = clock() + deadline_seconds
        self._began = clock()
        self._received = b""
        parent = os.getpid()
        self._words, tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _become(parent, tell, capture, request, scene, folder, home)
        os.close(tell)
        self._handle = hold_child(self._pid)
        os.set_blocking(self._words, False)

    def fileno(self) -> int:
        """For poll(): readable when it has said something."""
        return self._words

    def outcome(self) -> Outcome | None:
        """How it went, once it has ended; a late one is killed now."""
        ended = False
        while True:
            try:
                data = os.read(self._words, 65536)
            except BlockingIOError:
                break
            if not data or len(self._received) > LONGEST_LINE_BYTES:
                ended = True
                break
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            message: Message = json.loads(line)
            if "outcome" in message:
                self.close()
                return msgspec.convert(message["outcome"], Outcome)
            self.said = str(message.get("say", ""))
        if ended:
            return self._lost("the process that made the capture died", "")
        if self._clock() > self._ends:
            return self._lost(
                f"the capture did not finish within {duration(self._ends - self._began)} and was given up",
                "the profiler may still write in the job: perfwatch attach says how the job is doing",
            )
        return None

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._pid:
            kill_child(self._pid, self._handle)
            ends = self._clock() + REAP_SECONDS
            while _lives(self._pid) and self._clock() < ends:
                time.sleep(0.002)
            os.close(self._words)
            if self._handle is not None:
                os.close(self._handle)
            self._pid = 0

    def _lost(self, error: str, advice: str) -> Outcome:
        self.close()
        return Outcome(
            kind=self.request.kind,
            error=error,
            advice=advice,
            exit_code=CaptureFailed.exit_code,
            total_seconds=round(self._clock() - self._began, 3),
        )


def _lives(pid: int) -> bool:
    """True if our child has yet to end."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False  # another part of this process has collected it


def _become(
    parent: int, tell: int, capture: Capture, request: Request, scene: Scene, folder: Path, home: Path
) -> NoReturn:
    try:
        become_helper(parent, (tell,), b"perfwatch-take")
        if PTRACE in capture.USES:  # py-spy reads the process: what that costs is not for the job to decide
            limit_memory()

        def say(message: Message) -> None:
            rest = memoryview(msgspec.json.encode(message) + b"\n")
            while rest:
                rest = rest[os.write(tell, rest) :]

        outcome = take_as_needed(
            capture, request, scene, folder, home, lambda text: say({"say": text}), DEADLINE_SECONDS - LEAVE_SECONDS
        )
        say({"outcome": msgspec.to_builtins(outcome)})
    finally:
        os._exit(0)
