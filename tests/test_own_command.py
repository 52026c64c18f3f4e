"""What perfwatch starts of itself runs nothing that lies in the working directory, and says what ended it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.errors import PerfwatchError
from perfwatch.processes.reinvoke import own_command
from perfwatch.top.started_watch import StartedWatch

pytestmark = pytest.mark.live

ITS_NAMES = ("click", "msgspec", "json", "perfwatch", "sitecustomize")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules of common names, each of which would leave a trace."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ITS_NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write(__name__)\nraise SystemExit(9)\n"
        )
    return folder


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that can be watched."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_top_runs_no_module_of_the_working_directory(hostile: Path, tmp_path: Path, sleeper: int) -> None:
    """Neither when it is started nor in the watch that it starts."""
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions")}
    command = [*own_command(), "top", str(sleeper), "--once"]
    done = subprocess.run(command, cwd=hostile, env=environment, capture_output=True, text=True, timeout=60)

    assert not (tmp_path / "executed").exists()
    assert (done.returncode, done.stderr) == (0, "")


def test_watch_that_ends_before_it_begins_is_told_so(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how it ended and its last line; its exit code is none of ours."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho Traceback >&2\necho 'ImportError: no such thing' >&2\nexit 9\n")
    broken.chmod(0o700)
    monkeypatch.setenv("PERFWATCH_DIR", str(tmp_path / "sessions"))
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(PerfwatchError) as raised, StartedWatch(sleeper):
        pass

    assert str(raised.value) == "the watch ended at once (exit code 9): ImportError: no such thing"
    assert raised.value.exit_code == 1
