"""What another user's processes say of themselves costs root no more than a bound, and no other user a delay."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.security.conftest import DEADLINE_SECONDS, JOB, PERFWATCH, Popen, User, as_user, line

pytestmark = pytest.mark.live

FAKE_JOBS = 200
ADOPTED_SECONDS = 5.0
# A machine that other tests load as well takes longer to start the victim's interpreter; the figure itself is printed.
SLACK_SECONDS = 10.0
HUGE_BYTES = 40 * 2**20
# Gives a process a command line of any size, of memory that it has mapped: prctl(PR_SET_MM, PR_SET_MM_MAP).
GROW = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
class Map(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "start_code end_code start_data end_data start_brk brk start_stack arg_start arg_end env_start env_end auxv").split()
    ] + [("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]
def grow(size):
    words = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    words.write(b"a\\0" * (size // 2))
    start = ctypes.addressof(ctypes.c_char.from_buffer(words))
    stat = [int(one) for one in open("/proc/self/stat").read().rpartition(")")[2].split()[1:]]
    field = lambda number: stat[number - 4]
    layout = Map(field(26), field(27), field(45), field(46), field(47), libc.sbrk(0), field(28),
                 start, start + size, field(50), field(51), 0, 0, 0xFFFFFFFF)
    done = libc.prctl(35, 14, ctypes.byref(layout), ctypes.sizeof(layout), 0)
    return words if done == 0 else None
"""
HUGE = GROW + "kept = grow({size})\nprint('ready' if kept else 'refused', flush=True)\nimport time\ntime.sleep(1e6)\n"
# The first process of a PID namespace: orphans become its children.
INIT = """
import os
if os.fork():
    while True:
        os.wait()
"""
# Orphans, each of which is a job of its own to perfwatch; beside them processes that live for a moment.
NEIGHBOURS = """
import os, time
for _ in range({jobs}):
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            time.sleep(1e6)
        os._exit(0)
    os.waitpid(child, 0)
ready()
while True:
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(0.3)
            os._exit(0)
    time.sleep(0.2)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


@pytest.fixture
def hostile(mallory: User) -> Iterator[Callable[[str], Popen]]:
    """Runs a program of the attacker's in a PID namespace of its own, whose processes all end with the test."""
    started: list[Popen] = []

    def start(program: str) -> Popen:
        path = mallory.write(f"hostile-{len(started)}.py", INIT + program)
        process = subprocess.Popen(
            ("unshare", "--pid", "--fork", *as_user(mallory.uid), sys.executable, str(path)), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=mallory.home,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:  # setpriv has undone --kill-child: a change of the uid clears the parent death signal
        for init in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(init), signal.SIGKILL)
        process.kill()
        process.wait(DEADLINE_SECONDS)


class Daemon:
    """Root's daemon, with its log."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            (*PERFWATCH, "daemon", "--directory", str(home), "--every", "1"), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._rest = b""

    def hears(self, words: str, within_seconds: float = DEADLINE_SECONDS) -> float | None:
        """Seconds until a line of the log holds these words; None if none does in time."""
        assert self.process.stderr is not None
        descriptor, began = self.process.stderr.fileno(), time.monotonic()
        while (left := began + within_seconds - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left)[0]:
                data = os.read(descriptor, 65536)
                *lines, self._rest = (self._rest + data).split(b"\n")
                if any(words.encode() in one for one in lines):
                    return time.monotonic() - began
        return None

    def peak_bytes(self) -> int:
        """The most memory that the daemon itself has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(one for one in status.splitlines() if one.startswith("VmHWM")).split()[1])


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[[], Daemon]]:
    """Starts root's daemon."""
    started: list[Daemon] = []

    def start() -> Daemon:
        started.append(Daemon(tmp_path / "sessions"))
        assert started[0].hears("watching this machine") is not None
        return started[0]

    yield start
    for one in started:
        one.process.send_signal(signal.SIGTERM)
        one.process.wait(DEADLINE_SECONDS)


def test_many_jobs_of_one_user_do_not_delay_anothers(
    start_daemon: Callable[[], Daemon],
    hostile: Callable[..., Popen],
    victim: User,
    start_job: Callable[..., Popen],
    mallory: User,
) -> None:
    """The new job of another user is adopted within seconds, and the daemon says whose further jobs it leaves out."""
    library = mallory.write("libtorch_cpu.so", "not a library\n")
    neighbours = hostile(JOB.format(library=str(library), body=NEIGHBOURS.format(jobs=FAKE_JOBS)))
    assert line(neighbours) == "ready"
    daemon = start_daemon()
    assert daemon.hears("jobs are watched; more are not") is not None

    job = start_job(victim)
    took = daemon.hears(f"pid {job.pid}: adopted", ADOPTED_SECONDS + SLACK_SECONDS)

    assert took is not None
    print(f"adopted after {took:.1f} s")


def test_huge_command_lines_cost_the_daemon_nothing(
    start_daemon: Callable[[], Daemon], hostile: Callable[..., Popen], victim: User, start_job: Callable[..., Popen]
) -> None:
    """Three processes with 20 million words each: the daemon stays small, and adopts another user's job within seconds."""
    said = [line(hostile(HUGE.format(size=HUGE_BYTES))) for _ in range(3)]
    if "refused" in said:
        pytest.skip("this kernel does not let a process say where its command line is")

    daemon = start_daemon()
    job = start_job(victim)
    took = daemon.hears(f"pid {job.pid}: adopted", ADOPTED_SECONDS + SLACK_SECONDS)

    assert took is not None
    print(f"adopted after {took:.1f} s")
    assert daemon.peak_bytes() < 96 * 2**20


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
    resource.setrlimit(resource.RLIMIT_CPU, (30, 30))


def test_a_world_of_a_billion_ranks_costs_a_report_nothing(
    mallory: User, start_job: Callable[..., Popen], root_types: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:  # fmt: skip
    """The number of ranks in a job's environment does not decide how much memory a report takes."""
    job = start_job(mallory, environment={"WORLD_SIZE": "1000000000", "RANK": "0"})
    root_types("attach", str(job.pid), "--json")
    session = next(path.parent for path in tmp_path.rglob("session.json"))

    done = subprocess.run(
        (*PERFWATCH, "report", "--format", "md", str(session)), preexec_fn=_limited, capture_output=True,
        text=True, timeout=DEADLINE_SECONDS,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert f"pid {job.pid}" in done.stdout
    assert json.loads((session / "session.json").read_text())["conditions"].get("world_size") is None


PYTHON_THREADS = """
import threading
threading.stack_size(65536)
event = threading.Event()
for _ in range(10_000):
    threading.Thread(target=event.wait, daemon=True).start()
ready(); time.sleep(1e6)
"""
NATIVE_THREADS = """
import ctypes
libc = ctypes.CDLL(None)
attributes = ctypes.create_string_buffer(64)
libc.pthread_attr_init(attributes)
libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(65536))
for _ in range(10_000):
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), attributes, libc.pause, None)
ready(); time.sleep(1e6)
"""


@pytest.mark.parametrize("body", [PYTHON_THREADS, NATIVE_THREADS], ids=["python", "native"])
def test_a_process_of_ten_thousand_threads_gets_a_verdict(
    mallory: User, start_job: Callable[..., Popen], root_types: Callable[..., subprocess.CompletedProcess[str]], body: str
) -> None:  # fmt: skip
    """Its main thread sleeps for days, which is a hang; and how many threads were left out is said."""
    job = start_job(mallory, body)

    verdict = json.loads(root_types("attach", str(job.pid), "--json").stdout)

    assert verdict["state"] == "hung"
    assert any(
        "threads of pid" in one["reason"] and "were not sampled" in one["reason"] for one in verdict["not_observed"]
    )
