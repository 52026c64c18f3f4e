"""``perfwatch sessions``: which recordings are listed, and how."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from perfwatch.recording.kept import sessions_in
from perfwatch.report.sessions import SessionsReport
from tests.command_line import perfwatch
from tests.sessions import CREATED, record

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ((), {"one", "two"}),
        (("one",), {"one"}),
        (("t*",), {"two"}),
        (("train.py",), {"one", "two"}),
        (("none",), set()),
    ],
)
def test_a_list_can_be_of_some_sessions(tmp_path: Path, asked: tuple[str, ...], shown: set[str]) -> None:
    """By a part of a name or of a command; where there is none of them, that is said."""
    for name in ("one", "two"):
        record(tmp_path / name)

    done = perfwatch("sessions", "list", *asked, env={"PERFWATCH_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"})

    assert done.returncode == 0
    assert {line.split()[0] for line in done.stdout.splitlines()[1:-1]} == shown
    assert shown or "no session is called none" in done.stdout


def test_a_long_command_goes_on_below(tmp_path: Path) -> None:
    """On a terminal it has not its whole length on one line."""
    command = tuple(f"--option-{number}=1" for number in range(9))
    record(tmp_path / "one", command=("python", "train.py", *command))
    stream = io.StringIO()
    Console(file=stream, width=80, _environ={}).print(SessionsReport(sessions_in([str(tmp_path)]), CREATED))

    assert "".join(stream.getvalue().split()).count("--option-") == 9
