"""The endpoint of a run goes when anything of ours goes: a job must never ask a socket behind which nobody listens."""

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from perfwatch.captures.kineto.keeper import arm
from perfwatch.processes.control import find_watcher
from perfwatch.processes.place import Place
from perfwatch.run.arming import equipped
from perfwatch.run.request import Request
from tests.supervise.conftest import PATIENCE_SECONDS, Launch, Launched, python

pytestmark = pytest.mark.live

KILLS = int(os.environ.get("PERFWATCH_TEST_KILLS", "3"))  # 200 before a release: scripts/kill_rounds
GONE_SECONDS = 0.1
CROWDED_SECONDS = 0.9  # on a machine whose CPUs others use as well, the janitor may have to wait for its turn
# Says where its endpoint is, then waits to be told to end.
PROGRAM = (
    "import os, sys\n"
    "print(os.environ.get('KINETO_IPC_SOCKET_DIR', ''), os.environ.get('KINETO_USE_DAEMON', ''), flush=True)\n"
    "sys.stdin.read()\n"
)


def started(launch: Launch, **arguments: object) -> tuple[Launched, Path]:
    """A run of a program that waits, and the socket of its endpoint."""
    run = launch(*python(PROGRAM), options=("--quiet",), stdin=subprocess.PIPE, **arguments)
    folder, armed = run.line().split(" ")
    assert armed == "1"
    return run, Path(folder) / "dynolog"


def keepers(launcher: int) -> list[int]:
    """Janitor and server of a launcher."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "comm").read_text().strip()
            if name in ("perfwatch-tidy", "perfwatch-torch") and launcher in _above(int(entry.name)):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return sorted(found)


def _above(pid: int) -> list[int]:
    above: list[int] = []
    while pid > 1 and len(above) < 5:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        above.append(pid)
    return above


def gone_after(path: Path, limit: float = 10.0) -> float:
    """Seconds until a file is no more."""
    began = time.monotonic()
    while path.exists():
        assert time.monotonic() - began < limit, f"{path} is still there"
        select.select([], [], [], 0.002)
    return time.monotonic() - began


def test_job_finds_its_endpoint_from_its_first_moment(launch: Launch) -> None:
    """A process that polls a missing socket complains; the file is there before the job is."""
    run, address = started(launch)

    assert address.is_socket()
    assert len(os.fsencode(address.parent)) <= 54
    assert address.parent.stat().st_mode & 0o777 == 0o700
    assert run.process.poll() is None


@pytest.mark.parametrize("victim", ["launcher", "server", "janitor"])
def test_endpoint_goes_with_whoever_is_killed(launch: Launch, victim: str) -> None:
    """The others remove it within 100 ms, over and over."""
    chance = random.Random(victim)
    times = []
    for _ in range(KILLS):
        run, address = started(launch)
        janitor, server = keepers(run.pid)
        select.select([], [], [], chance.uniform(0.0, 0.3))
        os.kill({"launcher": run.pid, "server": server, "janitor": janitor}[victim], signal.SIGKILL)
        times.append(gone_after(address))
        assert run.process.stdin is not None
        run.process.stdin.close()
        run.end()

    assert sorted(times)[len(times) // 2] < GONE_SECONDS
    assert max(times) < CROWDED_SECONDS


def test_signal_for_the_launchers_group_spares_the_keepers(launch: Launch) -> None:
    """They stand in sessions of their own, and so outlive whatever hits the group long enough to tidy up."""
    run, address = started(launch, start_new_session=True)
    os.killpg(run.pid, signal.SIGKILL)

    assert gone_after(address) < CROWDED_SECONDS


def test_nothing_of_ours_is_left_after_an_ordinary_end(launch: Launch) -> None:
    """The place is removed, the keepers are gone, and the run ended as its command."""
    run, address = started(launch)
    pids = keepers(run.pid)
    assert run.process.stdin is not None
    run.process.stdin.close()

    assert run.end() == 0
    gone_after(address)
    for pid in pids:
        gone_after(Path(f"/proc/{pid}"))


@pytest.mark.parametrize("name", ["KINETO_USE_DAEMON", "KINETO_CONFIG", "KINETO_IPC_SOCKET_DIR"])
def test_what_the_user_has_set_stays(tmp_path: Path, name: str) -> None:
    """Somebody who uses Kineto's daemon himself keeps it: nothing is armed."""
    environment = {name: "mine", "HOME": "/root"}

    assert arm(environment, tmp_path) == (environment, None)
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_a_gpu_the_agent_is_asked_instead_of_torch(tmp_path: Path) -> None:
    """With KINETO_USE_DAEMON torch would initialise CUDA at its import, and what such a process forks could not use it."""
    program = (
        "import sys, pathlib; from perfwatch.captures.kineto.keeper import arm\n"
        "print(*arm({}, pathlib.Path(sys.argv[1]), later=True)[0])"
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        done = subprocess.run([sys.executable, "-c", program, place], capture_output=True, text=True, check=True)
        gone_after(Path(place) / "k" / "dynolog")
    names = done.stdout.split()

    assert "PERFWATCH_PROFILER" in names
    assert "KINETO_IPC_SOCKET_DIR" in names
    assert "KINETO_USE_DAEMON" not in names


def test_where_there_is_a_gpu_nothing_is_armed_without_the_agent(tmp_path: Path) -> None:
    """Nobody else could do it later."""
    driver = tmp_path / "nvidiactl"
    driver.touch()
    request = Request(("true",), agent=False)

    start = equipped(request, {}, Place(tmp_path, "root", shared=False), drivers=[driver])

    assert not any(name.startswith(("KINETO_", "PERFWATCH_")) for name in start.environment)


def test_folder_that_is_too_long_for_kineto_is_named_and_the_profiler_left_out(tmp_path: Path) -> None:
    """Beyond 54 bytes a client fails to start and says so on the job's stderr: we say why instead."""
    long = tmp_path / ("x" * 60)
    long.mkdir()

    start = equipped(Request(("true",), agent=False), {}, Place(long, "root", shared=False), drivers=[])

    assert not any(name.startswith("KINETO_") for name in start.environment)
    assert start.words == (
        f"perfwatch: not armed with torch: torch takes no socket folder of more than 54 bytes: {long}/k; the job runs without",
    )


def test_run_without_arming_leaves_the_environment_alone(launch: Launch) -> None:
    """``--arm none``."""
    run = launch(*python(PROGRAM), options=("--quiet", "--arm", "none"), stdin=subprocess.PIPE)

    assert run.line() == " "


def test_watcher_is_found_beside_the_endpoint(launch: Launch) -> None:
    """The place holds both; one does not hide the other."""
    run, _ = started(launch)
    ends = time.monotonic() + PATIENCE_SECONDS

    while find_watcher(run.pid) is None:
        assert time.monotonic() < ends
        select.select([], [], [], 0.05)
