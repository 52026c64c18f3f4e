"""The process that writes the session, and the watcher's end of the pipe to it.

A disk can be full, slow or dead. The watcher must not feel it: it puts lines into a bounded queue and a non-blocking
pipe, and a forked child does the writing. What the child could not store, what it never confirmed and what did not fit
into the queue is counted and said. When the watcher dies, the child stores what is in the pipe and ends.
"""

import contextlib
import fcntl
import gc
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from perfwatch.recording.segments import EVENTS, Segments
from perfwatch.recording.writer_process import END, LETTERS, PIN, PIPE_BYTES, SESSION, News, OpenFiles, become_writer
from perfwatch.text import duration
from perfwatch_probes.deadline import fork_with_pipes

QUEUE_BYTES = 4 * 2**20  # about 20,000 readings: minutes of a normal job
# Events (verdicts, outcomes) are few and worth more: they may use this much beyond what readings may.
EVENTS_EXTRA_BYTES = 2**20
STALLED_SECONDS = 5.0  # a disk that confirms nothing for so long is said to hang
REAP_TRIES = 100  # of a millisecond each: a process that has closed its pipe is about to end
MOST_PINS = 64  # that a restarted writer is told again; older ones have given way long before
MOST_RESTARTS = 3  # the writer is the first to die when memory runs out; later deaths mean that it will not live


class Writer:
    """Stores lines without ever blocking the caller. Not thread-safe; create it before the process starts threads."""

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        open_files: OpenFiles = Segments,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arguments = (folder, budget_bytes, open_files)
        self._clock = clock
        self._queue = bytearray()
        self._described = b""  # the session and the latest pins: a restarted writer must know them
        self._pins: deque[bytes] = deque(maxlen=MOST_PINS)
        self._handed_over = self._confirmed = self._lost_before = 0
        self._restarts = 0
        self._news = News()
        self._half_news = b""
        self._owing_since = clock()
        self.dropped = 0  # lines that never reached the pipe
        self.pid = 0
        self._gave_up = ""  # why there is no writer any more
        self._start()

    def put(self, stream: str, line: bytes) -> None:
        """Queue one line (JSON without newline) for ``readings``, ``stacks`` or ``events``; ``flush`` sends it."""
        limit = QUEUE_BYTES + (EVENTS_EXTRA_BYTES if stream == EVENTS else 0)
        if len(self._queue) + len(line) > limit or not self.pid:
            self.dropped += 1
            return
        if self._handed_over == self._confirmed:
            self._owing_since = self._clock()
        self._queue += LETTERS[stream] + line + b"\n"
        self._handed_over += 1

    def describe(self, session: bytes) -> None:
        """Replace ``session.json``."""
        self._described = SESSION + session + b"\n"
        self._command(self._described)

    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None:
        """Protect the segments of this time (seconds since the session began) from thinning, see ``Segments.pin``."""
        self._pins.append(PIN + msgspec.json.encode((first_at, last_at, incident)) + b"\n")
        self._command(self._pins[-1])

    def flush(self) -> None:
        """Hand over what the pipe takes now, and read the news."""
        self._listen()
        while self._queue and self.pid:
            try:
                sent = os.write(self._pipe, memoryview(self._queue)[:PIPE_BYTES])
            except BlockingIOError:
                break
            except BrokenPipeError:
                self._restart()
                break
            del self._queue[:sent]

    @property
    def lost(self) -> int:
        """Lines known to be lost: refused by the disk, dropped here, or gone with a writer that died."""
        return self._news.lost + self.dropped + self._lost_before

    @property
    def reason(self) -> str:
        """Why lines were lost, in words; empty when none were."""
        if self._gave_up:
            return self._gave_up
        if self.stalled_seconds >= STALLED_SECONDS:
            return f"the disk has not answered for {duration(self.stalled_seconds)}"
        return self._news.reason or ("the writing process was killed" if self._lost_before else "the disk was too slow")

    @property
    def stalled_seconds(self) -> float:
        """How long the writer has owed us an answer; 0 when it owes none."""
        pending = self._handed_over - self._confirmed
        return self._clock() - self._owing_since if pending > 0 else 0.0

    def sayings(self) -> tuple[str, ...]:
        """What the writer has said since this was last asked."""
        self._listen()
        said = self._news.said
        self._news = msgspec.structs.replace(self._news, said=())
        return said

    def settle(self, deadline_seconds: float) -> bool:
        """Wait until everything put so far is stored or known to be lost; False when that takes longer."""
        until = self._clock() + deadline_seconds
        self.flush()
        while self.pid and not self._ended and (self._queue or self._handed_over > self._confirmed):
            remaining = until - self._clock()
            if remaining <= 0:
                return False
            self._wait(remaining)
        return True

    def close(self, deadline_seconds: float) -> None:
        """Store what is queued and end the writer; a late one is killed, and what it owes is counted as lost."""
        until = self._clock() + deadline_seconds
        self._queue += END + b"\n"
        self._restarts = MOST_RESTARTS
        while self.pid and not self._ended and (remaining := until - self._clock()) > 0:
            self._wait(remaining)
        unconfirmed = self._handed_over - self._confirmed
        if not self._ended and unconfirmed:
            self._news = msgspec.structs.replace(
                self._news, reason=f"the disk did not answer within {deadline_seconds:g} s"
            )
        self._lost_before += unconfirmed
        self._handed_over = self._confirmed
        self._bury()

    def _wait(self, seconds: float) -> None:
        """Until the writer says something or can take more."""
        poll = select.poll()
        poll.register(self._news_pipe, select.POLLIN)
        if self._queue:
            poll.register(self._pipe, select.POLLOUT)
        poll.poll(seconds * 1000)
        self.flush()

    def _command(self, command: bytes) -> None:
        self._queue += command
        self.flush()

    def _start(self) -> None:
        parent = os.getpid()
        gc.freeze()  # a collector that walks all objects in the child would copy their pages: 9 MiB each
        self.pid, ((source, self._pipe), (self._news_pipe, news)) = fork_with_pipes(2)
        if self.pid == 0:
            become_writer(parent, source, news, *self._arguments)
        os.close(source)
        os.close(news)
        os.set_blocking(self._pipe, False)
        os.set_blocking(self._news_pipe, False)
        with contextlib.suppress(OSError):  # the user's pipe quota is used up: the default of 64 KiB works too
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._ended = False

    def _listen(self) -> None:
        while self.pid and not self._ended:
            try:
                chunk = os.read(self._news_pipe, 65536)
            except BlockingIOError:
                return
            if not chunk:
                self._ended = True
                return
            *lines, self._half_news = (self._half_news + chunk).split(b"\n")
            for line in lines:
                fresh = msgspec.json.decode(line, type=News)
                self._news = msgspec.structs.replace(fresh, said=self._news.said + fresh.said)
            self._confirmed = self._news.stored + self._news.lost
            self._owing_since = self._clock()

    def _restart(self) -> None:
        """The writer died. What it had not confirmed is lost; a new one goes on in new segments."""
        self._lost_before += self._handed_over - self._confirmed + self._news.lost
        self._bury()
        self._queue.clear()
        self._handed_over = self._confirmed = 0
        self._news, self._half_news = News(), b""
        self._owing_since = self._clock()
        if self._restarts >= MOST_RESTARTS:
            self._gave_up = "the writing process died repeatedly"
            return
        self._restarts += 1
        try:
            self._start()
        except OSError as error:
            self._gave_up = f"the writing process died and none can be started: {error.strerror}"
            return
        self._queue += self._described + b"".join(self._pins)

    def _bury(self) -> None:
        if not self.pid:
            return
        os.close(self._pipe)
        os.close(self._news_pipe)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):  # another part of this process collected it
            if not self._ended:
                os.kill(self.pid, signal.SIGKILL)
            for _ in range(REAP_TRIES):  # one in state D stays behind; it is never waited for
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    break
                time.sleep(0.001)
        self.pid = 0
