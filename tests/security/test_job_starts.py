"""The job always starts: whatever perfwatch lacks, the command runs as typed, one line says why, and nothing is left behind."""

import itertools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH, User, as_user
from tests.uids import own_uid

pytestmark = pytest.mark.live

UIDS = itertools.count(own_uid(4))  # one for each test: what still ends after one would count in the next
JOB = "echo job-ran; exit 5"
MOST_ENVIRONMENT_BYTES = 2**18  # of the test that fills it
FAILED = ("not watched", "not armed", "failed")  # in a line that says what perfwatch does without


@dataclass
class Ended:
    """How a command ended that perfwatch ran."""

    code: int
    output: str
    errors: str

    @property
    def reasons(self) -> list[str]:
        """The lines that say what perfwatch does without."""
        return [line for line in self.errors.splitlines() if any(word in line for word in FAILED)]


@pytest.fixture
def user() -> Iterator[User]:
    """A user with no other process."""
    uid = next(UIDS)
    home = Path(tempfile.mkdtemp(prefix=f"perfwatch-attack-{uid}-", dir="/tmp"))
    home.chmod(0o755)
    os.chown(home, uid, uid)
    yield User(uid, home)
    for folder in (home, *(Path(parent) / f"perfwatch-{uid}" for parent in ("/dev/shm", "/tmp", "/var/tmp"))):
        shutil.rmtree(folder, ignore_errors=True)


def run(user: User, *before: str, words: tuple[str, ...] = (), job: str = JOB, home: str = "", **more: object) -> Ended:
    """``perfwatch run`` of a shell command as this user. ``before``: root's words before, such as prlimit's."""
    command = (*before, *as_user(user.uid), *PERFWATCH, "run", *words, "--", "sh", "-c", job)
    environment = {**os.environ, "HOME": home or str(user.home), "PERFWATCH_DIR": str(user.home / "sessions")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment, cwd=user.home, **more
    )  # type: ignore[call-overload]
    return Ended(done.returncode, done.stdout, done.stderr)


def opening(end: int) -> tuple[str, ...]:
    """The words before a command that leave it every descriptor below ``end`` open."""
    program = (
        "import os, sys; [os.dup2(0, one) for one in range(3, int(sys.argv[1]))]; os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return (sys.executable, "-c", program, str(end))


def left_behind(uid: int) -> list[Path]:
    """The places of this user, as soon as there are none, or when the deadline is over."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while True:
        places = [place for parent in ("/dev/shm", "/tmp") for place in Path(parent).glob(f"perfwatch-{uid}/run-*")]
        if not places or time.monotonic() > ends:
            return places
        time.sleep(0.05)


@pytest.mark.parametrize("options", [(), ("--arm", "none"), ("--no-agent",)], ids=["armed", "arm-none", "no-agent"])
def test_a_parent_with_1100_open_files_gets_its_job_run_and_watched(user: User, options: tuple[str, ...]) -> None:
    """More descriptors than select() takes are no trouble at all, and the job has every one of them."""
    job = "[ -e /proc/self/fd/3 ] && [ -e /proc/self/fd/1102 ] && echo job-ran; exit 5"

    done = run(user, "prlimit", "--nofile=8192:8192", *opening(1103), words=options, job=job)

    assert (done.code, done.output, done.reasons) == (5, "job-ran\n", [])
    assert left_behind(user.uid) == []


@pytest.mark.parametrize("limit", [5, 6, 7, 8, 9])
def test_too_few_descriptors_cost_the_watch_and_not_the_job(user: User, limit: int) -> None:
    """From the least with which Python starts: the job runs, and a line says what to raise."""
    done = run(user, "prlimit", f"--nofile={limit}:{limit}")

    assert (done.code, done.output) == (5, "job-ran\n")
    assert [line for line in done.reasons if "Too many open files" not in line or "ulimit -n" not in line] == []
    assert len(done.reasons) == 1
    assert left_behind(user.uid) == []


@pytest.mark.parametrize("free", [2, 3, 4, 5])
def test_inherited_descriptors_up_to_the_limit_cost_the_watch_and_not_the_job(user: User, free: int) -> None:
    """The job gets what its parent left open; perfwatch does with the rest."""
    limit = 43 + free

    done = run(user, "prlimit", f"--nofile={limit}:{limit}", *opening(43), job=f"[ -e /proc/self/fd/42 ] && {JOB}")

    assert (done.code, done.output) == (5, "job-ran\n")
    assert len(done.reasons) == 1
    assert left_behind(user.uid) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_refused_processes_cost_the_watch_and_not_the_job(user: User, limit: int) -> None:
    """Where the user may have one process it is the job, with no child that it does not know."""
    job = 'read children < /proc/$$/task/$$/children; echo "<$children>"; exit 5'

    done = run(user, "prlimit", f"--nproc={limit}:{limit}", job=job)

    assert (done.code, done.output) == (5, "<>\n")
    assert len(done.reasons) == 1
    assert "Resource temporarily unavailable (raise the limit of processes: ulimit -u" in done.reasons[0]
    assert left_behind(user.uid) == []


def test_a_command_that_is_missing_is_told_as_ever_where_processes_are_refused(user: User) -> None:
    """The exit code is a shell's."""
    command = ("prlimit", "--nproc=1:1", *as_user(user.uid), *PERFWATCH, "run", "--quiet", "--", "/nowhere/at/all")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)

    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "perfwatch: /nowhere/at/all: No such file or directory\n"


@pytest.mark.parametrize("limit", ["--nofile=5:5", "--nofile=8:8", "--nproc=1:1", "--nproc=4:4"])
def test_quiet_says_nothing(user: User, limit: str) -> None:
    """Also of what perfwatch does without."""
    assert run(user, "prlimit", limit, words=("--quiet",)) == Ended(5, "job-ran\n", "")


# Memory and disk as they are for the job; the mounts are this command's alone.
MOUNTS = {
    "full memory": "mount -t tmpfs -o size=64k,mode=1777 none /dev/shm; cat /dev/zero > /dev/shm/filler 2> /dev/null",
    "read-only memory": "mount -t tmpfs -o ro none /dev/shm",
    "read-only memory and /tmp": "mount -t tmpfs -o ro none /dev/shm; mount -t tmpfs -o ro none /tmp",
    "full memory and /tmp": (
        "for it in /dev/shm /tmp; do mount -t tmpfs -o size=64k,mode=1777 none $it; cat /dev/zero > $it/filler 2> /dev/null; done"
    ),
    "memory and /tmp of root alone": "for it in /dev/shm /tmp; do mount -t tmpfs -o mode=700 none $it; done",
}


@pytest.mark.parametrize("mounts", MOUNTS.values(), ids=MOUNTS)
def test_memory_that_takes_no_place_costs_the_watch_and_not_the_job(user: User, mounts: str) -> None:
    """With another home there is a watch, with none a line says which folders were refused."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a mount namespace of its own")
    # Waits until nothing of ours is there: /dev/shm and /tmp are this command's alone.
    ours = f"/dev/shm/perfwatch-{user.uid} /tmp/perfwatch-{user.uid}"
    rest = f"for i in $(seq 600); do find {ours} -name 'run-*' 2> /dev/null | grep -q . || exit $code; sleep 0.1; done; exit 99"
    script = f'{mounts}; cd /; "$@"; code=$?; {rest}'
    command = (
        "unshare", "-m", "sh", "-c", script, "sh", *as_user(user.uid), *PERFWATCH, "run", "--", "sh", "-c", JOB
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False)
    ended = Ended(done.returncode, done.stdout, done.stderr)

    assert (ended.code, ended.output) == (5, "job-ran\n")
    assert len(ended.reasons) == ("/tmp" in mounts), ended.errors
    assert "Traceback" not in ended.errors


def test_a_home_that_may_not_be_read_costs_no_job_its_start(user: User) -> None:
    """Where the session would go may be anybody's."""
    locked = user.home / "locked"
    locked.mkdir(mode=0)

    done = run(user, home=str(locked))

    assert (done.code, done.output, done.reasons) == (5, "job-ran\n", [])
    assert left_behind(user.uid) == []


def test_an_environment_that_is_full_is_the_jobs_own() -> None:
    """Where perfwatch's own variables do not fit any more, the job starts without them."""
    command = (*PERFWATCH, "run", "--", "sh", "-c", JOB)
    fits, too_large = 0, MOST_ENVIRONMENT_BYTES
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        fits, too_large = (middle, too_large) if started_with(middle, "/bin/true", *command[1:]) else (fits, middle)
    fill = fits - len(sys.executable) - 50  # the kernel counts the program's path as well

    done = started_with(fill, *command)

    assert done is not None
    assert (done.returncode, done.stdout) == (5, "job-ran\n")
    assert [line.partition("; ")[2] for line in done.stderr.splitlines()] == ["the job is not affected"]
    assert "Argument list too long" in done.stderr


def started_with(fill_bytes: int, *command: str) -> "subprocess.CompletedProcess[str] | None":
    """A command under a small limit of its environment, with so much in it; None where the kernel refuses to start it."""
    fill = {f"FILL{number}": "x" * (fill_bytes // 4) for number in range(4)}  # one variable may have 128 KiB
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
            env={"PATH": os.environ["PATH"], **fill},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (4 * MOST_ENVIRONMENT_BYTES,) * 2),
        )  # fmt: skip
    except OSError:
        return None
