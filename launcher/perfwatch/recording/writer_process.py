"""The inside of the process that writes the session: it may block, fail or be killed, and no other process is hurt.

It reads messages from a pipe, one per line, the first letter saying what it is: R, S, E (a line for readings, stacks or
events), H (the new session.json), P (pin), Q (the end). It answers with ``News``.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from perfwatch.recording.segments import EVENTS, READINGS, STACKS
from perfwatch_probes.sessions import start_session

PIPE_BYTES = 2**20  # Linux's default limit for unprivileged users (fs.pipe-max-size)
SESSION, PIN, END = b"H", b"P", b"Q"
STREAMS = {b"R": READINGS, b"S": STACKS, b"E": EVENTS}
LETTERS = {stream: letter for letter, stream in STREAMS.items()}
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
    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


OpenFiles = Callable[[Path, int, Callable[[str], None]], Files]


def become_writer(
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
    start_session()
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
            is_line = letter in STREAMS
            try:
                if is_line:
                    files.append(STREAMS[letter], body + b"\n")
                elif letter == SESSION:
                    files.describe(body)
                elif letter == PIN:
                    files.pin(*msgspec.json.decode(body, type=tuple[float, float, bool]))
                ended = ended or letter == END
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
