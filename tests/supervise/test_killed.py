"""No death of ours is felt by the job: not stopped, not slowed, not delayed at its exit, not left with a tracer."""

import json
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perfwatch.processes.control import find_watcher
from tests.supervise.conftest import PATIENCE_SECONDS, Launch, python

pytestmark = pytest.mark.live

KILLS = int(os.environ.get("PERFWATCH_TEST_KILLS", "4"))  # 200 before a release
LONGEST_LIFE_SECONDS = 3.0  # of a watcher: start, first looks, first samples

# Takes steps on its own; says at the end how many, and the longest pause between two.
PROGRAM = """
import os, sys, threading, time
print(os.getpid(), flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
longest, before, steps = 0.0, time.monotonic(), 0
while steps < 5 or not ended.is_set():  # some after the kill, however soon that comes
    time.sleep(0.002)
    now = time.monotonic()
    longest, before, steps = max(longest, now - before), now, steps + 1
status = open("/proc/self/status").read()
print(steps, longest, status.split("TracerPid:")[1].split()[0], flush=True)
"""


def test_killed_launcher_leaves_the_job_running_and_nothing_of_ours(launch: Launch, tmp_path: Path) -> None:
    """SIGKILL on the launcher: the child goes on, can write, and exits; every process of ours is gone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = (
        "import os, sys\n"
        "print(os.getpid(), flush=True)\n"
        "print(open(sys.argv[1]).read(), flush=True)\n"
        "print('ends', flush=True)\n"
    )
    run = launch(*python(program), str(fifo))
    child = int(run.line())
    ours = [pid for pid in children(run.pid) if pid != child]
    run.process.kill()
    run.end()
    fifo.write_text("written after the kill")

    assert [run.line(), run.line(), run.line()] == ["written after the kill", "ends", ""]
    assert ours != []
    for pid in ours:
        await_end(pid)


@pytest.mark.parametrize("whom", ["watcher", "launcher", "everything of ours"])
def test_kills_at_random_moments_are_not_felt(launch: Launch, whom: str) -> None:
    """Whenever it happens, the program steps on, ends when it should, and it is not traced."""
    chance = random.Random(whom)
    for _ in range(KILLS):
        run = launch(*python(PROGRAM), stdin=subprocess.PIPE, options=("--quiet",))
        child = int(run.line())
        watcher = watcher_of(run.pid)
        select.select([], [], [], chance.uniform(0.0, LONGEST_LIFE_SECONDS))
        ours = [pid for pid in children(run.pid) if pid != child]
        victims = {"watcher": [watcher], "launcher": [run.pid], "everything of ours": [*ours, run.pid]}[whom]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert run.process.stdin is not None
        state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        run.process.stdin.close()
        began = time.monotonic()
        steps, longest, tracer = run.line().split()
        assert run.line() == ""  # the end of the stream: the program has ended, and nobody else holds it

        assert state in "RS"
        assert tracer == "0"
        assert int(steps) >= 5
        assert float(longest) < 1.0  # seconds, on a loaded machine; a stop would last for ever
        assert time.monotonic() - began < 5.0
        for pid in ours:
            await_end(pid)


def test_killed_watcher_is_told(launch: Launch) -> None:
    """The user learns that nobody watches any more; the exit code is still the child's."""
    run = launch(
        *python("import sys; print('ready', flush=True); sys.stdin.read(); sys.exit(9)"), stdin=subprocess.PIPE
    )
    assert run.line() == "ready"
    os.kill(watcher_of(run.pid), signal.SIGKILL)
    said = run.said()
    assert run.process.stdin is not None
    run.process.stdin.close()

    assert said == "perfwatch: the watcher ended early (signal 9); the job continues without monitoring\n"
    assert run.end() == 9


def test_a_watcher_that_is_killed_after_the_job_has_ended_leaves_no_job_unwatched(launch: Launch) -> None:
    """There is none that goes on."""
    run = launch(*python("import os; print(os.getpid(), flush=True); input()"), stdin=subprocess.PIPE)
    job = int(run.line())
    watcher = psutil.Process(watcher_of(run.pid))
    watcher.suspend()  # or it would have said how the job went, and left
    assert run.process.stdin is not None
    run.process.stdin.write("\n")
    run.process.stdin.close()
    await_end(job)
    watcher.kill()

    assert run.end() == 0
    assert run.process.stderr is not None
    assert "unwatched" not in run.process.stderr.read()


def test_full_stderr_does_not_keep_the_launcher(tmp_path: Path) -> None:
    """Somebody who does not read our stderr gets no summary, and no delay either."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while os.write(writer, b"x" * 65536):
            pass
    except BlockingIOError:
        os.set_blocking(writer, True)
    command = [sys.executable, "-m", "perfwatch", "run", "--", "sh", "-c", "read line; exit 4"]
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=writer, env=environment) as run:
        assert run.stdin is not None
        run.stdin.write(b"\n")

    assert run.wait(PATIENCE_SECONDS) == 4
    os.close(reader)
    os.close(writer)


def children(pid: int) -> list[int]:
    """Child processes."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def watcher_of(launcher: int) -> int:
    """The watcher, as soon as it has its name."""
    while True:
        for pid in children(launcher):
            if Path(f"/proc/{pid}/comm").read_text() == "perfwatch-watch\n":
                return pid
        select.select([], [], [], 0.01)


def await_end(pid: int) -> None:
    """Return when this process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = select.select([handle], [], [], PATIENCE_SECONDS)[0]
    os.close(handle)
    assert ended, f"process {pid} lives on"


# Takes a signal of ours for its end; hears of the one after them.
LISTENER = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [])
signal.signal(signal.SIGRTMIN + 12, lambda number, frame: os.write(1, b"heard\\n"))
os.write(1, b"ready\\n")
sys.stdin.read()
sys.exit(6)
"""
ASKING = [signal.SIGRTMIN + 8, signal.SIGRTMIN + 9, signal.SIGRTMIN + 10]


def test_run_that_cannot_be_watched_says_so_and_is_launched_as_ever(launch: Launch) -> None:
    """A file system that takes nothing more, as a full /dev/shm: one line, and neither asking nor ending is otherwise."""
    nothing_written = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))}
    run = launch(*python(LISTENER), stdin=subprocess.PIPE, **nothing_written)
    assert run.line() == "ready"
    for number in (*ASKING, signal.SIGRTMIN + 12):  # lower numbers are delivered first
        os.kill(run.pid, number)
    assert run.line() == "heard"
    assert run.process.stdin is not None
    run.process.stdin.close()

    assert run.end() == 6
    assert run.process.stderr is not None
    said = run.process.stderr.read()
    assert said.startswith("perfwatch: this run is not watched: /")
    assert said.endswith("File too large; the job is not affected\n")


def test_launcher_that_failed_still_keeps_from_the_job_what_asks_perfwatch() -> None:
    """A signal that asks for a verdict or a capture is not passed on: it would kill the job."""
    launcher = (
        "import os, sys\n"
        "from perfwatch.run.child import start, wait_plainly\n"
        "from perfwatch.processes.linux import SignalFile\n"
        "status = wait_plainly(start(sys.argv[1:], os.environ, SignalFile()))\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )
    with subprocess.Popen(
        [*python(launcher), *python(LISTENER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for number in (*ASKING, signal.SIGRTMIN + 12):
            os.kill(process.pid, number)
        heard = process.stdout.readline()

    assert (heard, process.returncode) == (b"heard\n", 6)


@pytest.mark.parametrize(
    "request_line",
    [
        b'{"command": "captured", "number": [1]}\n',
        b'{"command": "capture", "request": {"kind": ["torch"]}}\n',
        b'{"command": ["status"], "what": {}}\n',
        b"[" * 60_000 + b"\n",
    ],
)
def test_odd_request_does_not_end_the_watch(launch: Launch, request_line: bytes) -> None:
    """It is answered as an error, and the job is watched to its end."""
    run = launch(*python("import sys; print('ready', flush=True); sys.stdin.read()"), stdin=subprocess.PIPE)
    assert run.line() == "ready"
    while (control := find_watcher(run.pid)) is None:
        select.select([], [], [], 0.01)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_SECONDS)
        client.connect(str(control))
        client.sendall(request_line)
        answer = json.loads(client.makefile().readline())
    assert run.process.stdin is not None
    run.process.stdin.close()

    assert answer["ok"] is False
    assert run.end() == 0
    assert run.process.stderr is not None
    said = run.process.stderr.read()
    assert "error" not in said
    assert "failed" not in said
    assert "perfwatch: " in said  # the summary
