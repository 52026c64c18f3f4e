"""The process that writes the session, and the watcher's end of the pipe to it.

A disk can be full, slow or dead. The watcher must not feel it: it puts lines into a bounded queue and a non-blocking pipe,
and a forked child does the writing. What the child could not store, what it never confirmed and what did not fit into the
queue is counted and said. When the watcher dies, the child stores what is in the pipe and ends.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from perfwatch.segments import EVENTS, READINGS, STACKS, Segments

QUEUE_BYTES = 4 * 2**20  # about 20,000 readings: minutes of a normal job
# Events (verdicts, outcomes) are few and worth more: they may use this much beyond what readings may.
EVENTS_EXTRA_BYTES = 2**20
PIPE_BYTES = 2**20  # Linux's default limit for unprivileged users (fs.pipe-max-size)
STALLED_SECONDS = 5.0  # a disk that confirms nothing for so long is said to hang
REAP_TRIES = 100  # of a millisecond each: a process that has closed its pipe is about to end
MOST_RESTARTS = 3  # the writer is the first to die when memory runs out; later deaths mean that it will not live

_SESSION, _PIN, _END = b"H", b"P", b"Q"
_STREAMS = {b"R": READINGS, b"S": STACKS, b"E": EVENTS}
_LETTERS = {stream: letter for letter, stream in _STREAMS.items()}
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the writer reports: totals since it began, and sentences about what was given up."""

    stored: int = 0
    lost: int = 0
    reason: str = ""  # of the latest loss
    said: tuple[str, ...] = ()


class Files(Protocol):
    """Where lines end up: ``Segments``, or in a test something that blocks or fails."""

    def append(self, stream: str, line: bytes) -> None: ...  # noqa: D102
    def describe(self, session: bytes) -> None: ...  # noqa: D102
    def pin(self, first_at: float, last_at: float) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


OpenFiles = Callable[[Path, int, Callable[[str], None]], Files]


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
        self._resend: list[bytes] = []  # the session and the pins: a restarted writer must know them
        self._handed_over = self._confirmed = self._lost_before = 0
        self._restarts = 0
        self._news = News()
        self._half_news = b""
        self._owing_since = clock()
        self.dropped = 0  # lines that never reached the pipe
        self.pid = 0
        self._start()

    def put(self, stream: str, line: bytes) -> None:
        """Queue one line (JSON without newline) for ``readings``, ``stacks`` or ``events``; ``flush`` sends it."""
        limit = QUEUE_BYTES + (EVENTS_EXTRA_BYTES if stream == EVENTS else 0)
        if len(self._queue) + len(line) > limit or not self.pid:
            self.dropped += 1
            return
        if self._handed_over == self._confirmed:
            self._owing_since = self._clock()
        self._queue += _LETTERS[stream] + line + b"\n"
        self._handed_over += 1

    def describe(self, session: bytes) -> None:
        """Replace ``session.json``."""
        self._resend = [command for command in self._resend if not command.startswith(_SESSION)]
        self._command(_SESSION + session + b"\n")

    def pin(self, first_at: float, last_at: float) -> None:
        """Protect the segments of this time (seconds since the session began) from thinning."""
        self._command(_PIN + msgspec.json.encode((first_at, last_at)) + b"\n")

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
        if not self.pid:
            return "the writing process died repeatedly"
        if self.stalled_seconds >= STALLED_SECONDS:
            return f"the disk has not answered for {self.stalled_seconds:.0f} s"
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

    def close(self, deadline_seconds: float) -> None:
        """Store what is queued and end the writer; one that does not end in time is killed and its debt counted as lost."""
        until = self._clock() + deadline_seconds
        if self.pid:
            self._queue += _END + b"\n"
            self._restarts = MOST_RESTARTS
        while self.pid and (remaining := until - self._clock()) > 0:
            poll = select.poll()
            poll.register(self._news_pipe, select.POLLIN)
            if self._queue:
                poll.register(self._pipe, select.POLLOUT)
            poll.poll(remaining * 1000)
            self.flush()
            if self._ended:
                break
        unconfirmed = self._handed_over - self._confirmed
        if not self._ended and unconfirmed:
            self._news = msgspec.structs.replace(
                self._news, reason=f"the disk did not answer within {deadline_seconds:g} s"
            )
        self._lost_before += unconfirmed
        self._handed_over = self._confirmed
        self._bury()

    def _command(self, command: bytes) -> None:
        self._resend.append(command)
        self._queue += command
        self.flush()

    def _start(self) -> None:
        source, self._pipe = os.pipe()
        self._news_pipe, news = os.pipe()
        os.set_blocking(self._pipe, False)
        os.set_blocking(self._news_pipe, False)
        with contextlib.suppress(OSError):  # the user's pipe quota is used up: the default of 64 KiB works too
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._ended = False
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_writer(parent, source, news, *self._arguments)
        os.close(source)
        os.close(news)

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
        if self._restarts < MOST_RESTARTS:
            self._restarts += 1
            self._start()
            self._queue += b"".join(self._resend)

    def _bury(self) -> None:
        if not self.pid:
            return
        os.close(self._pipe)
        os.close(self._news_pipe)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):  # somebody else in this process collected it
            if not self._ended:
                os.kill(self.pid, signal.SIGKILL)
            for _ in range(REAP_TRIES):  # one in state D stays behind; it is never waited for
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    break
                time.sleep(0.001)
        self.pid = 0


def _become_writer(
    parent: int, source: int, news: int, folder: Path, budget_bytes: int, open_files: OpenFiles
) -> NoReturn:
    """The child. Nothing may escape into the code above the fork."""
    status = 1
    try:
        _detach(parent, source, news)
        _serve(source, news, folder, budget_bytes, open_files)
        status = 0
    finally:
        os._exit(status)


def _detach(parent: int, source: int, news: int) -> None:
    os.setsid()  # the terminal's signals are not for us
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT}:
        signal.signal(number, signal.SIG_IGN)

    def parent_died(*_: object) -> None:
        if os.getppid() != parent:
            os.set_blocking(source, False)  # store what is left in the pipe, then end

    signal.signal(signal.SIGTERM, parent_died)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    parent_died()
    _libc.prctl(_PR_SET_NAME, b"perfwatch-write", 0, 0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in (source, news):
            with contextlib.suppress(OSError):  # the folder that was being listed
                os.close(int(name))
    os.set_blocking(news, False)
    with contextlib.suppress(OSError):  # a hardened container may mount it read-only
        Path("/proc/self/oom_score_adj").write_text("1000")


def _serve(source: int, news: int, folder: Path, budget_bytes: int, open_files: OpenFiles) -> None:
    said: list[str] = []
    files = open_files(folder, budget_bytes, said.append)
    stored = lost = 0
    reason = ""
    rest = b""
    ended = False
    while not ended:
        try:
            chunk = os.read(source, PIPE_BYTES)
        except BlockingIOError:
            break
        if not chunk:
            break
        *messages, rest = (rest + chunk).split(b"\n")
        for message in messages:
            letter, body = message[:1], message[1:]
            is_line = letter in _STREAMS
            try:
                if is_line:
                    files.append(_STREAMS[letter], body + b"\n")
                elif letter == _SESSION:
                    files.describe(body)
                elif letter == _PIN:
                    files.pin(*msgspec.json.decode(body, type=tuple[float, float]))
                ended = ended or letter == _END
                stored += is_line
            except OSError as error:
                lost += is_line
                reason = error.strerror or str(error)
                said += [] if is_line else [f"could not be stored: {reason}"]
        said = _report(news, News(stored, lost, reason, tuple(said[:10])), said)
    files.close()


def _report(news: int, report: News, said: list[str]) -> list[str]:
    """Tell the watcher; what it has no room for now is kept for the next time."""
    try:
        os.write(news, msgspec.json.encode(report) + b"\n")
    except BlockingIOError:
        return said
    return said[len(report.said) :]
