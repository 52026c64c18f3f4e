"""Many commands at once, each with a deadline and a limit on what it may say: for the engines that have no pool of their own.

Each command gets no stdin and a session of its own, and is ended with all that it started when its time is up or its
answer is too long. The environment is ours: ssh, srun and kubectl need the user's keys and contexts.
"""

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO

from perfwatch.fleet.engine import Answer
from perfwatch.fleet.wire import LONGEST_ANSWER_BYTES

AT_ONCE = 64
MOST_TURNS = 4  # of a deadline each, in which commands are begun: what is begun later tells of another moment
LONGEST_COMPLAINT_BYTES = 64 * 1024
LONGEST_LINE = 400
_UNASKED = "it was not asked: {} hosts are asked at a time, and others took too long"


Output = Callable[[bytes], None]
Complaint = Callable[[str], str]


def last_line(text: str, but: str | None = None) -> str:
    """The last line that says anything, cut to what fits on one; one that begins with ``but`` only where there is no other."""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in said if but is None or not line.startswith(but)] or said
    return telling[-1][:LONGEST_LINE] if telling else ""


def run(
    commands: Mapping[str, Sequence[str]],
    deadline_seconds: float,
    at_once: int = AT_ONCE,
    output: Output | None = None,
    complaint: Complaint = last_line,
) -> Iterator[Answer]:
    """Run each host's command; yield its answer as soon as it has ended. Each has its deadline from when it is begun.

    One that cannot be begun within some deadlines is not asked, and that is no silence. ``output`` takes what is printed as it
    comes, and bounds it: then the answer has no lines, and may be of any length. ``complaint``: what of stderr is ``said``.
    """
    last_start = time.monotonic() + MOST_TURNS * deadline_seconds
    waiting = deque(commands.items())
    running: dict[_Running, float] = {}  # and when each is late, in this order
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < at_once and time.monotonic() < last_start:
                    host, command = waiting.popleft()
                    try:
                        running[_Running(host, command, selector, output, complaint)] = (
                            time.monotonic() + deadline_seconds
                        )
                    except OSError as error:
                        yield Answer(host, said=f"{command[0]}: {error.strerror}", exit_code=127, received=time.time())
                if not running:
                    break
                for key, _ in selector.select(max(0.0, next(iter(running.values())) - time.monotonic())):
                    one: _Running = key.data
                    if one in running and one.read(key.fileobj):  # type: ignore[arg-type]
                        yield one.answer(running.pop(one))
                for one in [one for one, ends in running.items() if ends <= time.monotonic()]:
                    del running[one]
                    yield one.answer(0.0, timed_out=True)
            for host, _ in waiting:
                yield Answer(host, said=_UNASKED.format(at_once), unasked="failed", received=time.time())
        finally:
            for one in running:  # the process that asks has exited
                one.kill()


class _Running:
    """One command at work."""

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        selector: selectors.BaseSelector,
        output: Output | None,
        complaint: Complaint,
    ) -> None:
        self._host = host
        self._output = output
        self._complaint = complaint
        self._selector = selector
        self._child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._texts: dict[IO[bytes], bytearray] = {self._child.stdout: bytearray(), self._child.stderr: bytearray()}
        self._open = set(self._texts)
        self._too_long = False
        for stream in self._open:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, self)

    def read(self, stream: IO[bytes]) -> bool:
        """Take what is there; whether nothing more will come."""
        if stream not in self._open:
            return not self._open
        try:
            chunk = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        text = self._texts[stream]
        if stream is self._child.stdout and self._output is not None:
            self._output(chunk)
        elif stream is self._child.stdout:
            text += chunk
            self._too_long = len(text) > LONGEST_ANSWER_BYTES
        else:
            text += chunk
            del text[:-LONGEST_COMPLAINT_BYTES]
        if not chunk or self._too_long:
            self._close(stream)
        if self._too_long:
            self.kill()
        return not self._open

    def answer(self, ends: float, timed_out: bool = False) -> Answer:
        """How it ended; by force when it is late."""
        try:
            code: int | None = self._child.wait(max(0.0, min(1.0, ends - time.monotonic())))
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        output, errors = self._texts.values()
        return Answer(
            host=self._host,
            lines=tuple(output.decode(errors="replace").splitlines()),
            said=self._complaint(errors.decode(errors="replace")),
            exit_code=None if timed_out else code,
            timed_out=timed_out,
            too_long=self._too_long,
            received=time.time(),
        )

    def kill(self) -> None:
        """End it and all that it started; one that cannot be killed is left behind."""
        for stream in list(self._open):
            self._close(stream)
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(0.2)

    def _close(self, stream: IO[bytes]) -> None:
        self._selector.unregister(stream)
        self._open.discard(stream)
        stream.close()
