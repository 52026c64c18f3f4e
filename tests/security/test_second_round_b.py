"""Attacks through recordings, prepared folders, the metrics' port, secrets and the environment of ``perfwatch run``."""

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from perfwatch.errors import SessionUnreadable
from perfwatch.exporters import metrics_endpoint
from perfwatch.exporters.wanted import MetricsWanted
from perfwatch.processes.own_folders import make_own_folder, own_folders
from perfwatch.recording.archive import opened
from perfwatch.recording.recording import load
from perfwatch.recording.redaction import redact, redact_command
from perfwatch.recording.session import SCHEMA, Machine, Session, session_name
from perfwatch.traces.ncu_rows import read_rows
from perfwatch_probes import bounds
from tests.end_to_end.conftest import until
from tests.security.conftest import DEADLINE_SECONDS, MALLORY, PERFWATCH, User, as_user

pytestmark = pytest.mark.live

HOLE_BYTES = 2**37  # what a file of no block can pretend to have; read in full it takes minutes
MOST_MEMORY_BYTES = 3 * 2**30  # of a reader of any session; without a bound on values more than 20 GiB
OBJECT_BYTES = 72  # an empty one, and its place in a list
SECRET = "hunter2Zx"

RootTypes = Callable[..., "subprocess.CompletedProcess[str]"]


def description(mode: str = "run") -> bytes:
    """A ``session.json``."""
    machine = Machine(name="m", kernel="6", architecture="x86_64", cpus=2, memory_bytes=2**30)
    one = Session(
        schema=SCHEMA, version="0", created=1.7e9, mode=mode, machine=machine, command=("python", "planted.py")
    )
    return msgspec.json.encode(one)


def plant(user: User, home: Path) -> Path:
    """A session of this user's in a folder that everybody may read."""
    folder = home / session_name(1.7e9, 7)
    folder.mkdir(parents=True)
    (folder / "session.json").write_bytes(description())
    for path in (home, folder, folder / "session.json"):
        path.chmod(0o755)
        os.chown(path, user.uid, user.uid)
    return folder


@pytest.fixture
def without_home(victim: User) -> Iterator[dict[str, str]]:
    """The environment of a user whose home cannot be written to."""
    yield {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    for parent in ("/dev/shm", "/tmp", "/var/tmp"):
        for folder in Path(parent).glob(f"perfwatch-{victim.uid}.*"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("command", ["replay", "report", "bundle", "top"])
def test_a_session_that_another_user_has_prepared_is_not_ours(
    mallory: User, victim: User, without_home: dict[str, str], command: str
) -> None:
    """Whoever makes /var/tmp/perfwatch-UID first does not choose what that user takes for the newest recording."""
    plant(mallory, Path(f"/var/tmp/perfwatch-{victim.uid}"))
    words = (*as_user(victim.uid), *PERFWATCH, command)
    done = subprocess.run(
        words, capture_output=True, text=True, env=without_home, cwd=victim.home, timeout=DEADLINE_SECONDS
    )
    assert "planted" not in done.stdout
    assert "no session was found" in done.stderr
    assert not list(victim.home.glob("*.tar.gz"))


def test_no_user_keeps_another_from_being_watched(mallory: User, victim: User, without_home: dict[str, str]) -> None:
    """Names in /dev/shm, /tmp and /var/tmp that another user has taken cost neither the watch nor the recording."""
    for parent in ("/dev/shm", "/tmp", "/var/tmp"):
        mallory.run("mkdir", f"{parent}/perfwatch-{victim.uid}")
    job = f"until ls /var/tmp/perfwatch-{victim.uid}.*/*/session.json; do sleep 0.1; done"  # within the deadline of the command
    words = (*as_user(victim.uid), *PERFWATCH, "run", "--", "sh", "-c", job)
    done = subprocess.run(
        words, capture_output=True, text=True, env=without_home, cwd=victim.home, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0
    assert "not watched" not in done.stderr
    (recorded,) = Path("/var/tmp").glob(f"perfwatch-{victim.uid}.*/*/session.json")
    assert recorded.stat().st_uid == victim.uid
    found = subprocess.run(
        (*as_user(victim.uid), *PERFWATCH, "replay"), capture_output=True, text=True, env=without_home,
        cwd=victim.home, timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    assert recorded.parent.name in found.stdout


@pytest.mark.parametrize("command", [("replay",), ("report", "--format", "md"), ("bundle",), ("top", "--once")])
def test_files_with_holes_are_not_read_to_their_end(
    mallory: User, root_types: RootTypes, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A folder of a few KiB with terabytes of holes is refused within what a session may have."""
    folder = mallory.home / "holes"
    folder.mkdir()
    (folder / "session.json").write_bytes(description())
    for number in range(1, 40):
        with (folder / f"readings-{number:04}.jsonl").open("wb") as file:
            file.truncate(HOLE_BYTES)
    output = ("-o", str(tmp_path / "out.tar.gz")) if command[0] == "bundle" else ()
    done = root_types(command[0], str(folder), *command[1:], *output)
    assert done.returncode == 2
    assert "which no session has" in done.stderr
    assert not (tmp_path / "out.tar.gz").exists()


@pytest.mark.without_root
def test_an_archive_of_empty_objects_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte that unpacks to hundreds of millions of objects is refused before they are made."""
    assert bounds.MOST_VALUES * OBJECT_BYTES <= MOST_MEMORY_BYTES
    monkeypatch.setattr(bounds, "MOST_VALUES", 2**21)
    line = (
        b'{"at":1.0,"wall":1.7e9,"kind":"note","text":"","facts":{"a":[' + b"{}," * (4 * 2**20 // 3 - 50) + b"{}]}}\n"
    )
    archive = tmp_path / "bomb.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for name, content in (("session.json", description()), ("events.jsonl", line * 2)):
            member = tarfile.TarInfo(f"s/{name}")
            member.size = len(content)
            packed.addfile(member, BytesIO(content))
    with opened(archive) as folder, pytest.raises(SessionUnreadable, match="values, which no session has"):
        load(folder)


@pytest.mark.without_root
def test_scrapers_that_dribble_hold_no_thread_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scraper that sends a byte now and then is hung up on, and any number of them leaves room for one that asks."""
    from prometheus_client import CollectorRegistry

    monkeypatch.setattr(metrics_endpoint, "REQUEST_SECONDS", 1.5)
    monkeypatch.setattr(metrics_endpoint, "MOST_CONNECTIONS", 4)
    address = metrics_endpoint.serve_metrics(MetricsWanted(), CollectorRegistry())
    port = int(address.rpartition(":")[2].removesuffix("/metrics"))
    before = threads()
    dribbling = [socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) for _ in range(12)]
    for one in dribbling:
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
    with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as asking:
        asking.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asking.recv(64).startswith(b"HTTP/1.0 200")
    until(lambda: threads() - before <= 4 + 1)  # those that are hung up on take a moment to end
    ends = time.monotonic() + DEADLINE_SECONDS
    while dribbling and time.monotonic() < ends:
        time.sleep(0.2)
        for one in list(dribbling):
            try:
                one.sendall(b"X: y\r\n")
            except OSError:
                one.close()
                dribbling.remove(one)
    assert not dribbling


def threads() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/task"))


@pytest.mark.without_root
@pytest.mark.parametrize("module", ["msgspec", "click", "rich", "psutil"])
def test_a_library_of_the_job_does_not_keep_it_from_starting(tmp_path: Path, module: str) -> None:
    """PYTHONPATH may hold our libraries in a version for another Python: the job starts and is watched."""
    (tmp_path / f"{module}.py").write_text("raise ImportError('of another Python')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PERFWATCH_DIR": str(tmp_path / "sessions")}
    words = (*PERFWATCH, "run", "--", "sh", "-c", "sleep 2.5; exit 5")
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path.parent, timeout=60)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    assert "not watched" not in done.stderr


@pytest.mark.without_root
def test_a_job_gets_no_locale_that_its_user_has_not_set(tmp_path: Path) -> None:
    """Python sets LC_CTYPE for itself where no locale is set; the job does not inherit it."""
    environment = {"PATH": os.environ["PATH"], "PERFWATCH_DIR": str(tmp_path / "sessions")}
    shown = subprocess.run(
        (*PERFWATCH, "run", "--quiet", "--", "env"), capture_output=True, text=True, env=environment, timeout=60
    )
    assert shown.returncode == 0
    assert not [line for line in shown.stdout.splitlines() if line.startswith("LC_CTYPE=")]
    environment["LC_CTYPE"] = "C.UTF-8"
    kept = subprocess.run(
        (*PERFWATCH, "run", "--quiet", "--", "env"), capture_output=True, text=True, env=environment, timeout=60
    )
    assert "LC_CTYPE=C.UTF-8" in kept.stdout.splitlines()


@pytest.mark.without_root
@pytest.mark.parametrize(
    "command",
    [
        ("python", "-c", f"os.environ['HF_TOKEN']='{SECRET}'"),
        ("python", "-c", f'os.environ["HF_TOKEN"] = "{SECRET}"'),
        ("python", "-c", f"os.environ.setdefault('HF_TOKEN', '{SECRET}')"),
        ("python", "-c", f"os.putenv('HF_TOKEN','{SECRET}')"),
        ("python", "-c", f"setattr(client, 'password', '{SECRET}')"),
        ("python", "-c", f"client(api_key=f'{SECRET}')"),
        ("python", "-c", f'client(api_key=rb"{SECRET}")'),
        ("bash", "-c", f'curl -d "{{\\"token\\":\\"{SECRET}\\"}}" x'),
        ("aws", "configure", "set", "aws_secret_access_key", SECRET),
        ("python", "t.py", "--storage", f"mysql://ann:a@{SECRET}@db/x"),
        ("python", "t.py", "--proxy", f"ann:{SECRET}@proxy:3128"),
        ("python", "t.py", "--bearer", SECRET),
        ("python", "t.py", "--mqtt.pass", SECRET),
    ],
)
def test_these_forms_of_a_secret_are_taken_out(command: tuple[str, ...]) -> None:
    """In a command line and in a line of a log or of source; a second time changes nothing."""
    words = redact_command(command)
    assert len(words) == len(command)
    text = redact(" ".join(command))
    assert SECRET not in " ".join(words) + text
    assert redact_command(words) == words
    assert redact(text) == text


@pytest.mark.without_root
@pytest.mark.parametrize("cell", ["1e308", "-1e308", "-1", "1e300", "9" * 400])
def test_a_counter_that_no_card_has_is_a_missing_one(cell: str) -> None:
    """A report of anybody's has no kernel of infinite time, and no efficiency that is no number."""
    header = '"ID","Kernel Name","gpu__time_duration.sum"'
    (run,) = read_rows([f"{header}\n", '"","","second"\n', f'"0","k","{cell}"\n'])
    assert run.time_ns is None


@pytest.mark.without_root
@pytest.mark.parametrize(
    "variable",
    ["PYTHONINSPECT=1", "PYTHONWARNINGS=error", "PYTHONOPTIMIZE=2", "PYTHONIOENCODING=ascii", "TMPDIR=/nonexistent"],
)
def test_a_hostile_variable_changes_nothing_about_the_job(tmp_path: Path, variable: str) -> None:
    """Such a variable is the job's; under perfwatch it ends as it would end alone, and its input is its own."""
    name, _, value = variable.partition("=")
    environment = {**os.environ, name: value, "PERFWATCH_DIR": str(tmp_path / "sessions")}
    job = (sys.executable, "-S", "-E", "-c", "import sys; print(sys.stdin.read()); sys.exit(7)")
    done = subprocess.run(
        (*PERFWATCH, "run", "--", *job), input="fed", capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout) == (7, "fed\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_another_user_has_taken_gets_a_random_end(mallory: User, tmp_path: Path) -> None:
    """So root's daemon, too, has a folder for its recordings; a link to another user's folder counts as taken."""
    taken = Path(f"/var/tmp/perfwatch-attack-{MALLORY}-{os.getpid()}")
    mallory.run("mkdir", str(taken))
    try:
        made = make_own_folder(taken)
        assert made != taken
        assert made.stat().st_uid == os.geteuid()
        assert made.stat().st_mode & 0o777 == 0o700
        assert make_own_folder(taken) == made
        assert own_folders(taken) == [made]
        made.rmdir()
    finally:
        taken.rmdir()
    link = tmp_path / "link"
    link.symlink_to(mallory.home)
    assert own_folders(link) == []
    assert make_own_folder(link) != link
