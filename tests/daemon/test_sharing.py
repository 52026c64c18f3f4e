"""One user may read what the daemon records, and gets nothing else."""

import os
from pathlib import Path

import pytest

from perfwatch.daemon.shares import Shares
from perfwatch.daemon.sharing import ATTRIBUTE, share
from perfwatch.recording.segments import READINGS, Segments

READER = 1001


def shared(path: Path) -> bool:
    """True if the file has an access control list."""
    return ATTRIBUTE in os.listxattr(path, follow_symlinks=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder as a daemon leaves it."""
    made = tmp_path / "home"
    (made / "session").mkdir(parents=True, mode=0o700)
    for name in ("log", ".daemon", "session/events.jsonl", "session/.reserve"):
        (made / name).write_text(name)
        (made / name).chmod(0o600)
    share(str(made), READER)
    if not shared(made):
        pytest.skip("this file system has no access control lists")
    return made


def test_folders_and_files_are_shared_and_hidden_ones_are_not(home: Path) -> None:
    """Locks and reserves stay the daemon's; owner and other users keep what they had."""
    modes = {str(path.relative_to(home)): path.stat().st_mode & 0o777 for path in home.rglob("*")}

    assert modes == {
        "log": 0o640, ".daemon": 0o600, "session": 0o750, "session/events.jsonl": 0o640, "session/.reserve": 0o600
    }  # fmt: skip
    assert {path.stat().st_uid for path in home.rglob("*")} == {os.geteuid()}


def test_a_segment_that_is_compressed_stays_shared(home: Path) -> None:
    """A reader finds no moment in which it may not be read: it has all that the lines had before it replaces them."""
    segments = Segments(home / "session", 2**20, lambda text: None)
    segments.append(READINGS, b'{"at":1.0}\n')
    share(str(home), READER)
    os.utime(home / "session/readings-0001.jsonl", (1e9, 1e9))
    before = (home / "session/readings-0001.jsonl").stat()
    segments.close()
    after = (home / "session/readings-0001.jsonl").stat()

    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_mtime) == (before.st_mode, 1e9)
    assert shared(home / "session/readings-0001.jsonl")


def test_a_second_round_writes_nothing(home: Path) -> None:
    """It is done every two seconds for as long as a job runs."""
    before = {path: path.stat().st_ctime_ns for path in (home, *home.rglob("*"))}
    share(str(home), READER)

    assert {path: path.stat().st_ctime_ns for path in before} == before


def test_what_leads_elsewhere_is_not_shared(home: Path, tmp_path: Path) -> None:
    """A symbolic link, a hard link and a FIFO are left as they are, and nothing waits for them."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    folder = tmp_path / "folder"
    folder.mkdir()
    (home / "link").symlink_to(secret)
    (home / "folder").symlink_to(folder)
    os.link(secret, home / "hard")
    os.mkfifo(home / "fifo", 0o600)
    share(str(home), READER)

    assert secret.stat().st_mode & 0o777 == 0o600
    assert not any(shared(path) for path in (secret, folder, home / "fifo", home / "link"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file of another user's")
def test_a_file_of_another_user_is_not_shared(home: Path) -> None:
    """It is for its owner to say who reads it."""
    (home / "theirs").write_text("")
    os.chown(home / "theirs", 1002, 1002)
    share(str(home), READER)

    assert not shared(home / "theirs")


class Clock:
    """A clock that the work moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


def test_a_user_whose_processes_are_slow_to_read_delays_its_own_alone() -> None:
    """Of 100 that take a second each one is read, and all of the other user's."""
    clock = Clock()
    shares, read = Shares(clock), []

    for uid in shares.turns({1001: [1001] * 100, 1002: [1002] * 50}, 1.0):
        clock.now += 1.0 if uid == 1001 else 0.001
        read.append(uid)

    assert (read.count(1001), read.count(1002)) == (1, 50)


def test_what_was_used_before_counts_at_the_next_round() -> None:
    """A user that is new goes first."""
    clock = Clock()
    shares = Shares(clock)
    for _ in shares.turns({1001: list(range(100))}, 1.0):
        clock.now += 0.1

    order = list(shares.turns({1001: ["old"] * 3, 1002: ["new"] * 3}, 1.0))

    assert order == ["new"] * 3 + ["old"] * 3
