"""A recording that may not be read is said to be, with what it is that may not, the advice and the exit code."""

import ctypes
import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from perfwatch.recording.finding import find_session
from tests.sessions import record

PR_CAPBSET_DROP = 24  # linux/prctl.h
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2  # linux/capability.h


def perfwatch(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user to whom the modes of files apply, which they do not to root."""
    libc = ctypes.CDLL(None)

    def become_ordinary() -> None:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)

    command = [sys.executable, "-m", "perfwatch", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, preexec_fn=become_ordinary, env={**os.environ, "HOME": "/"}
    )


COMMANDS = ("replay", "report", "bundle", "top", "compare")
FORBIDDEN = ("", "session.json", "readings-0001.jsonl", "above")


@pytest.mark.live
@pytest.mark.parametrize(
    ("command", "forbidden"),
    [*itertools.product(COMMANDS, FORBIDDEN), *((command, "archive") for command in ("replay", "report", "compare"))],
)
def test_what_may_not_be_read_is_named(tmp_path: Path, command: str, forbidden: str) -> None:
    """The folder, a file of it, a folder above it, an archive: nothing is judged from the rest."""
    above = tmp_path / "above"
    above.mkdir()
    folder = record(above / "s")
    denied = {"above": above, "archive": tmp_path / "s.tar.gz"}.get(forbidden, folder / forbidden)
    if forbidden == "archive":
        folder = denied
        denied.touch()
    denied.chmod(0)
    rest = {
        "report": ("-o", str(tmp_path / "r.html")), "bundle": ("-o", str(tmp_path / "b.tar.gz")),
        "top": ("--once",), "compare": (str(folder),),
    }.get(command, ())  # fmt: skip

    done = perfwatch(command, str(folder), *rest)
    denied.chmod(0o700)

    told, advice = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (77, "")
    assert told == f"perfwatch: {folder if forbidden == 'above' else denied}: Permission denied"
    assert "sudo" in advice


class Denying:
    """A child for which every place is denied."""

    def call(self, function: Callable[..., object], *arguments: object, deadline_seconds: float) -> NoReturn:
        """What the kernel would say."""
        raise PermissionError(errno.EACCES, "Permission denied", str(arguments[0]))


def test_folders_of_sessions_that_may_not_be_read_are_not_empty_ones() -> None:
    """Nobody is told to record a run first."""
    with pytest.raises(PermissionError):
        find_session(None, {"PERFWATCH_DIR": "/somebody/elses"}, Denying())


@pytest.mark.live
@pytest.mark.parametrize("mode", [0, 0o500])
@pytest.mark.parametrize("command", ["report", "bundle"])
def test_a_place_that_may_not_be_written_is_named(tmp_path: Path, command: str, mode: int) -> None:
    """Also where it may not even be looked at."""
    folder = record(tmp_path / "s")
    (tmp_path / "there").mkdir(mode)
    target = tmp_path / "there" / ("x.tar.gz" if command == "bundle" else "x.html")

    done = perfwatch(command, str(folder), "-o", str(target))

    assert done.returncode == 2
    assert done.stderr.startswith(f"perfwatch: {target} could not be written: Permission denied")
