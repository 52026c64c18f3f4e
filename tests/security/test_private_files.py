"""What perfwatch makes is its user's alone, and what it copies is the file itself: neither a link's target nor without end."""

import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfwatch.autopsy.files import find_files
from perfwatch.autopsy.recording_of import gather
from perfwatch.autopsy.watch import copy_end
from perfwatch.recording.segments import EVENTS, READINGS, Segments
from perfwatch.run.dumps import MOST_DUMP_BYTES, keep_dumps
from perfwatch_probes.group_variables import AGENT_VARIABLE, DUMP_PREFIX
from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH, as_user, line
from tests.uids import own_uid

UID = own_uid(2)
SECRET = b"secret"


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of a user of whom nothing else is on this machine."""
    folder = Path(tempfile.mkdtemp(prefix=f"perfwatch-attack-{UID}-", dir="/tmp"))
    folder.chmod(0o755)
    os.chown(folder, UID, UID)
    yield folder
    for made in (folder, *(Path(parent) / f"perfwatch-{UID}" for parent in ("/dev/shm", "/tmp", "/var/tmp"))):
        shutil.rmtree(made, ignore_errors=True)


def open_to_others(*folders: Path) -> list[str]:
    """What lies below these folders, themselves included, and has a permission for the group or for others."""
    found = [path for folder in folders if folder.exists() for path in (folder, *folder.rglob("*"))]
    return [
        f"{stat.filemode(path.lstat().st_mode)} {path}"
        for path in found
        if path.lstat().st_mode & 0o077 and not path.is_symlink()
    ]


@pytest.mark.live
def test_everything_that_a_run_makes_is_private_whatever_the_umask(home: Path) -> None:
    """The place in memory, the profilers' endpoint, the session, the dumps in it; the job keeps the umask that it was given."""
    job = (
        f'echo dump > "${AGENT_VARIABLE}/{DUMP_PREFIX}0"; chmod 600 "${AGENT_VARIABLE}/{DUMP_PREFIX}0"; '
        f'echo "$(umask) ${AGENT_VARIABLE}"; read line; exit 3'
    )
    command = (*as_user(UID), *PERFWATCH, "run", "--", "sh", "-c", job)
    environment = {**os.environ, "HOME": str(home)}
    environment.pop("PERFWATCH_DIR", None)
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=0,
        env=environment,
        cwd=home,
    ) as run:
        umask, _, folder = line(run).partition(" ")  # one line: select() does not see a second one that is buffered
        place = Path(folder)
        until_watched(place, home)
        living = open_to_others(place.parent)
        files = [path.name for path in place.rglob("*")]
        run.communicate("\n", timeout=DEADLINE_SECONDS)
    (session,) = (path.parent for path in home.rglob("session.json"))

    assert run.returncode == 3
    assert umask == "0000"
    assert {"control", "config", "dynolog", "root-0"} <= set(files)
    assert living == []
    until_kept(session / "flight_recorder" / f"{DUMP_PREFIX}0")
    assert open_to_others(session) == []


def until_watched(place: Path, home: Path) -> None:
    """Wait for the watcher's socket, which it makes before its session, and for a sample in the session."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while not ((place / "control").exists() and any(file.stat().st_size for file in home.rglob("readings*.jsonl"))):
        assert time.monotonic() < ends, "no watcher"
        time.sleep(0.02)


def until_kept(dump: Path) -> None:
    """The watcher copies it after the launcher's end."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while not dump.exists():
        assert time.monotonic() < ends, "no dump in the session"
        time.sleep(0.02)


def test_a_dump_that_becomes_a_link_is_never_its_target(tmp_path: Path) -> None:
    """However often the job replaces it by a link to a file that only perfwatch's user may read."""
    place, secret = tmp_path / "place", tmp_path / "secret"
    place.mkdir()
    secret.write_bytes(SECRET)
    dump, link = place / f"{DUMP_PREFIX}0", place / "link"
    stopped = threading.Event()

    def exchange() -> None:
        while not stopped.is_set():
            link.unlink(missing_ok=True)
            link.symlink_to(secret)
            link.replace(dump)
            (place / "file").write_bytes(b"dump")
            (place / "file").replace(dump)

    attacker = threading.Thread(target=exchange)
    attacker.start()
    contents = set()
    for number in range(2000):
        session = tmp_path / str(number)
        session.mkdir()
        contents |= {kept.read_bytes() for kept in keep_dumps(place, session)}
    stopped.set()
    attacker.join()

    assert contents == {b"dump"}


def test_a_dump_that_grows_is_not_copied_for_ever(tmp_path: Path) -> None:
    """The size is a bound of the copy, not a thing that was true before it."""
    place, session = tmp_path / "place", tmp_path / "session"
    place.mkdir()
    session.mkdir()
    (place / f"{DUMP_PREFIX}1").write_bytes(b"x" * MOST_DUMP_BYTES)
    stopped = threading.Event()

    def grow() -> None:
        with (place / f"{DUMP_PREFIX}1").open("ab") as file:
            while not stopped.is_set():
                file.write(b"x" * 4096)
                file.flush()
                if file.tell() > 16 * MOST_DUMP_BYTES:
                    file.truncate(MOST_DUMP_BYTES)

    attacker = threading.Thread(target=grow)
    attacker.start()
    for _ in range(50):
        keep_dumps(place, session)
    stopped.set()
    attacker.join()

    assert all(path.stat().st_size <= MOST_DUMP_BYTES for path in session.rglob(f"{DUMP_PREFIX}*"))


class Exchanging:
    """Lists the files of a folder, then has its owner put a link to something else in the place of each."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def call(self, function: Callable[..., Any], *arguments: Any, deadline_seconds: float) -> Any:
        """As a child does it."""
        if function is not find_files:
            return function(*arguments)
        found = find_files(*arguments)
        for path in map(Path, found.files):
            path.unlink()
            path.symlink_to(self.target)
        return found


def test_a_log_that_becomes_a_device_after_it_was_listed_is_not_opened(tmp_path: Path) -> None:
    """To open some devices restarts a machine. A FIFO stands for one: it would be read as an empty log."""
    folder, fifo = tmp_path / "logs", tmp_path / "fifo"
    folder.mkdir()
    (folder / "rank_0.log").write_text("step 1\n")
    os.mkfifo(fifo)
    found = gather([str(folder)], Exchanging(fifo))

    assert found.contents == []
    assert [reason for _, reason, _ in found.missing] == ["rank_0.log is not a file of the kind that is wanted"]
    with pytest.raises(OSError, match="not a file of the kind"):
        copy_end(str(folder / "rank_0.log"), str(folder), str(tmp_path / "copy"))


class FolderExchanging(Exchanging):
    """Has a link to another folder take the place of each folder below the one that was listed."""

    def call(self, function: Callable[..., Any], *arguments: Any, deadline_seconds: float) -> Any:
        """As a child does it."""
        result = function(*arguments)
        if function is find_files:
            for folder in {Path(path).parent for path in result.files}:
                folder.rename(folder.with_name(f"{folder.name}-before"))
                folder.symlink_to(self.target)
        return result


def test_a_folder_that_becomes_a_link_after_it_was_listed_is_not_followed(tmp_path: Path) -> None:
    """A log, a session, a trace and a database with the names of files that only root can read."""
    logs, secrets = tmp_path / "logs", tmp_path / "secrets"
    names = ("rank_0.log", "session.json", "trace.json", "report.sqlite")
    for number, name in enumerate(names):
        for home in (logs / str(number), secrets):
            home.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("RuntimeError: secret\n")
    found = gather([str(logs)], FolderExchanging(secrets))

    assert found.contents == []
    assert [reason for _, reason, _ in found.missing] == ["Not a directory"] * len(names)
    with pytest.raises(NotADirectoryError):
        copy_end(str(logs / "0" / "rank_0.log"), str(logs), str(tmp_path / "copy"))


def test_a_session_that_is_moved_while_it_is_written_takes_its_files_along(tmp_path: Path) -> None:
    """``--session`` in a folder of another user, who puts a link in its place: nothing is written or removed where the link leads."""
    session, moved, victim = tmp_path / "session", tmp_path / "moved", tmp_path / "victim"
    session.mkdir()
    victim.mkdir()
    (victim / "readings-0001.jsonl").write_bytes(SECRET)
    segments = Segments(session, 2**16, lambda text: None)
    segments.append(READINGS, b'{"at":0.5,"reading":{}}\n')
    session.rename(moved)
    session.symlink_to(victim)
    for second in range(1, 4000):
        segments.append(READINGS, b'{"at":%d.5,"reading":{"text":"%s"}}\n' % (second, b"x" * 100))
    segments.append(EVENTS, b'{"at":4000.0}\n')
    segments.describe(b"{}")
    segments.close()

    assert {path.name: path.read_bytes() for path in victim.iterdir()} == {"readings-0001.jsonl": SECRET}
    assert {"events.jsonl", "session.json"} <= {path.name for path in moved.iterdir()}


def test_a_session_that_is_a_link_when_its_writer_starts_is_not_written(tmp_path: Path) -> None:
    """It was a folder when it was made."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "session").symlink_to(tmp_path / "victim")

    with pytest.raises(OSError, match="session"):
        Segments(tmp_path / "session", 2**16, lambda text: None)
