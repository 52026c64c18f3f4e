"""Looks that other hosts ask for leave a bounded number of sessions, and touch none of another kind."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from perfwatch.fleet.clearing import BUDGET_BYTES, MOST_SESSIONS, YOUNG_SECONDS, clear, tidy
from perfwatch.fleet.merge.snapshot import Snapshot
from perfwatch.recording.recording import Recorder
from perfwatch.recording.session import SNAPSHOT
from tests.fleet.parts import simulated
from tests.sessions import PATIENCE_SECONDS, session

pytestmark = pytest.mark.live

NOW = 1_795_175_484.0
OLD = NOW - YOUNG_SECONDS - 1000.0


def made(home: Path, name: str, created: float, mode: str = SNAPSHOT) -> Path:
    """A session."""
    (home / name).mkdir(mode=0o700)
    Recorder(home / name, session(mode=mode, created=created)).close(PATIENCE_SECONDS)
    return home / name


def test_the_newest_looks_stay(tmp_path: Path) -> None:
    """And each session of another kind, however old."""
    for number in range(MOST_SESSIONS + 2):
        made(tmp_path, f"look-{number}", OLD + number)
    made(tmp_path, "attached", 0.0, "attach")
    made(tmp_path, "of-the-daemon", 0.0, "daemon")
    (tmp_path / "something-else").mkdir()

    assert sorted(clear(str(tmp_path), NOW)) == ["look-0", "look-1"]
    assert len(os.listdir(tmp_path)) == MOST_SESSIONS + 3


def test_large_ones_are_fewer(tmp_path: Path) -> None:
    """All together stay within the budget of one session of run."""
    for number in range(3):
        folder = made(tmp_path, f"look-{number}", OLD + number)
        with (folder / "readings-0001.jsonl").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, BUDGET_BYTES // 2 - 2**20)

    assert clear(str(tmp_path), NOW) == ["look-0"]


def test_one_that_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    """As where two looks clear at once, and each finds folders gone."""
    for number in range(MOST_SESSIONS + 2):
        made(tmp_path, f"look-{number}", OLD + number)

    def remove(path: str) -> None:
        if path.endswith("look-1"):
            raise FileNotFoundError(2, "No such file or directory", path)
        shutil.rmtree(path)

    assert clear(str(tmp_path), NOW, remove) == ["look-0"]
    assert not (tmp_path / "look-0").exists()


def test_a_home_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """The answer has been given: what is wrong with the folders now changes nothing of it."""
    view = msgspec.structs.replace(simulated(1)[0].view, folder=str(tmp_path / "gone" / "look-0"))

    tidy(Snapshot(version="0.1.0", host="node-0", place="", made=NOW, jobs=(view,)))


def test_what_may_be_written_now_stays(tmp_path: Path) -> None:
    """Somebody else's look at the same time."""
    for number in range(MOST_SESSIONS + 2):
        made(tmp_path, f"look-{number}", NOW - 10.0 + 0.1 * number)

    assert clear(str(tmp_path), NOW) == []
