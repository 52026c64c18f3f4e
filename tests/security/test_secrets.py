"""What another user of the machine, or whoever reads a recording, learns of a job's secrets: nothing."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH, Popen, User, as_user
from tests.sessions import content_of

pytestmark = pytest.mark.live

SECRET = f"hunter2-{os.urandom(6).hex()}"  # of this run: other runs on the machine have theirs
URL = f"http://127.0.0.1:9/services/T0/{SECRET}"
SERVED = "metrics are served on "
JOB = "echo ready ${PERFWATCH_NOTIFY-none}${PERFWATCH_HEARTBEAT-}; read line"
# Every command line that this user can read, but its own: our processes may end meanwhile.
LISTING = """
import os
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read().split(bytes(1))
    except OSError:
        continue
    print(pid, *words)
"""
SCRAPE = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def line_with(text: str, process: Popen) -> str:
    """The next line on its stderr that holds this."""
    assert process.stderr is not None
    ends = time.monotonic() + DEADLINE_SECONDS
    said = ""
    while time.monotonic() < ends:
        if select.select([process.stderr], [], [], ends - time.monotonic())[0]:
            said += os.read(process.stderr.fileno(), 4096).decode()
            if text in said:
                return said
    raise AssertionError(f"{text} is not in {said}")


@contextmanager
def running(*options: str, user: User | None = None, **environment: str) -> Iterator[tuple[Popen, str]]:
    """``perfwatch run`` with these options over a job that waits, once it has started; and what the job printed."""
    words = (*(as_user(user.uid) if user else ()), *PERFWATCH, "run", *options, "--", "/bin/sh", "-c", JOB)
    home = {"HOME": str(user.home), "PERFWATCH_DIR": str(user.home / "sessions")} if user else {}
    process = subprocess.Popen(
        words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **home, **environment}, cwd=user.home if user else None,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], DEADLINE_SECONDS)[0]
        yield process, process.stdout.readline().strip()
    finally:
        process.communicate("\n", DEADLINE_SECONDS)


def command_lines(user: User) -> str:
    """Those of all processes, as this user reads them."""
    return user.run(sys.executable, "-c", LISTING).stdout


def test_no_user_reads_a_webhook_in_the_command_lines_of_perfwatch(mallory: User, victim: User) -> None:
    """Typed by a user: it is overwritten before the first helper process starts."""
    with running("--notify", URL, "--metrics-port", "0", user=victim) as (process, _):
        line_with(SERVED, process)
        seen = command_lines(mallory)

    assert "--notify" in seen
    assert SECRET not in seen


def test_root_may_not_type_a_webhook(root_types: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    """It would be in sudo's log too; the way out is named, and the secret is not repeated."""
    for command in (
        ("run", "--notify", URL, "--", "true"),
        ("daemon", f"--notify={URL}"),
        ("attach", "1", "--watch", "--notify", URL),
        ("run", "--heartbeat", URL, "--", "true"),
    ):
        refused = root_types(*command)

        assert refused.returncode == 2
        assert "every user of this machine can read a command line" in refused.stderr
        assert "@webhook" in refused.stderr
        assert SECRET not in refused.stderr


def test_a_webhook_in_the_environment_is_not_passed_on_to_the_job(mallory: User) -> None:
    """Nor is it in a command line."""
    with running("--metrics-port", "0", PERFWATCH_NOTIFY=URL, PERFWATCH_HEARTBEAT=URL) as (process, said):
        line_with(SERVED, process)
        seen = command_lines(mallory)

    assert said == "ready none"
    assert SECRET not in seen


def test_another_user_scrapes_no_command_line(mallory: User, tmp_path: Path) -> None:
    """The port is open to every user of the machine; the label is for those who ask for it."""
    session = ("--session", str(tmp_path / "s"))
    with running("--metrics-port", "0", *session) as (process, _):
        address = line_with(SERVED, process).partition(SERVED)[2].split()[0]
        ends = time.monotonic() + DEADLINE_SECONDS
        scraped = ""
        while "perfwatch_job_info" not in scraped and time.monotonic() < ends:
            scraped = mallory.run(sys.executable, "-c", SCRAPE, address).stdout

    assert "perfwatch_job_info{" in scraped
    assert "command=" not in scraped
    assert "read line" not in scraped


def test_another_user_without_the_token_scrapes_nothing(mallory: User, tmp_path: Path) -> None:
    """And cannot read it: only its file is named."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o600)
    with running("--metrics-port", "0", "--metrics-token", f"@{token}") as (process, _):
        address = line_with(SERVED, process).partition(SERVED)[2].split()[0]
        scraped = mallory.run(sys.executable, "-c", SCRAPE, address).stdout
        seen = command_lines(mallory)

    assert scraped == "401\n"
    assert SECRET not in seen


def test_another_user_cannot_open_the_metrics_socket(mallory: User, victim: User) -> None:
    """In a folder that everybody may enter."""
    path = victim.home / "metrics"
    with running("--metrics-socket", str(path), user=victim) as (process, _):
        line_with(SERVED, process)
        refused = mallory.run(sys.executable, "-c", CONNECT, str(path), check=False)
        victim.run(sys.executable, "-c", CONNECT, str(path))

    ends = time.monotonic() + DEADLINE_SECONDS
    while path.exists() and time.monotonic() < ends:  # its watcher may end after it
        time.sleep(0.05)

    assert "PermissionError" in refused.stderr
    assert not path.exists()


@pytest.mark.parametrize(
    "child",
    [
        ["sh", "-c", "read line", "mysql", f"-p{SECRET}"],
        ["sh", "-c", f"read line # {SECRET}"],
        ["sh", "-c", "read line", "curl", "-d", f"pin {SECRET}"],
    ],
    ids=["password", "script", "data"],
)
def test_no_argument_of_another_program_is_recorded(
    child: list[str], victim: User, start_job: Callable[..., Popen],
    root_types: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path,
) -> None:  # fmt: skip
    """The programs that a job starts take secrets in forms that nobody can list."""
    file = victim.write("child.json", json.dumps(child))
    body = f"import json, subprocess; words = json.load(open({str(file)!r}))\nsubprocess.Popen(words, stdin=subprocess.PIPE)"
    job = start_job(victim, f"{body}\nready(); time.sleep(1e6)")
    session = tmp_path / "session"
    said = root_types("attach", str(job.pid), "--json", "--session", str(session))
    recorded = b"".join(content_of(path) for path in session.rglob("*") if path.is_file())

    assert b'"sh"' in recorded
    assert SECRET.encode() not in recorded
    assert SECRET not in said.stdout + said.stderr
