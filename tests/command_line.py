"""Commands of perfwatch in this process: the same words, streams and exit codes, without a new interpreter for each call."""

import io
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from perfwatch import cli


def perfwatch(*words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> "CompletedProcess[str]":
    """Run a command and return what it printed and its exit code.

    Args:
        words: the words after ``perfwatch``.
        env: the whole environment of the command; that of this process by default.
        cwd: the working directory of the command.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), _environment(env), _working_directory(cwd), _children_ended():
        try:
            cli.main(words)
        except SystemExit as end:
            code = end.code
    assert code is None or isinstance(code, int), code
    return CompletedProcess(("perfwatch", *words), code or 0, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8", errors="surrogateescape")


def _children() -> set[int]:
    pid = os.getpid()
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@contextmanager
def _children_ended() -> Iterator[None]:
    """Kill the helpers that a command leaves to the end of its process."""
    before = _children()
    try:
        yield
    finally:
        for child in _children() - before:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextmanager
def _environment(wanted: Mapping[str, str] | None) -> Iterator[None]:
    before = dict(os.environ)
    if wanted is not None:
        os.environ.clear()
        os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _working_directory(wanted: Path | None) -> Iterator[None]:
    before = Path.cwd()
    if wanted is not None:
        os.chdir(wanted)
    try:
        yield
    finally:
        os.chdir(before)
