"""Many attaches at once, each killed at a random moment: nothing of them stays, and the job is unharmed.

PERFWATCH_STORM=300 for the full storm, PERFWATCH_SEED for other moments.
"""

import contextlib
import os
import random
import select
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from perfwatch_probes.stacks import left_traced
from tests.end_to_end.conftest import until
from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH, Popen, User, line

pytestmark = pytest.mark.live

ATTACHES = int(os.environ.get("PERFWATCH_STORM", "24"))
AT_ONCE = 4
SEED = int(os.environ.get("PERFWATCH_SEED", "20261120"))
EARLIEST_SECONDS, LATEST_SECONDS = 0.1, 1.4
STRAY_SECONDS = 10.0  # the writer stores what is in its pipe before it ends
MARK = f"/perfwatch-in-a-storm-{os.getpid()}"  # on PATH, the one variable that also py-spy gets from us
# A job that sleeps in many threads, and answers for as long as it is well.
BODY = """
import threading
for _ in range(8):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
ready()
for _ in sys.stdin:
    print("well", flush=True)
"""
# Each attach sees folders of the test as /dev/shm and /var/tmp, so that what it leaves there is told from other programs' files.
ALONE = 'mount --bind "$0/shm" /dev/shm && mount --bind "$0/var" /var/tmp && exec "$@"'


def strays() -> list[str]:
    """Processes of the storm that still run."""
    found = []
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error, OSError):
            if MARK in process.environ().get("PATH", ""):
                found.append(f"{process.pid} {process.name()}")
    return found


def attach_and_kill(number: int, pid: int, folder: Path) -> None:
    """One attach: SIGKILL, SIGTERM, or SIGKILL for all its processes, which is what a memory limit does to a container."""
    chance = random.Random(SEED + number)
    session = folder / "sessions" / str(number)
    command = (*PERFWATCH, "attach", str(pid), "--watch", "--session", str(session))
    with subprocess.Popen(
        ("unshare", "--mount", "sh", "-c", ALONE, str(folder), *command),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:{MARK}", "TMPDIR": str(folder / "tmp")},
    ) as attach:  # fmt: skip
        if number % 2:  # on a busy machine many would otherwise be killed before they record anything
            until(lambda: (session / "session.json").exists() or attach.poll() is not None)
        select.select([], [], [], chance.uniform(EARLIEST_SECONDS, LATEST_SECONDS))
        below = psutil.Process(attach.pid).children(recursive=True) if number % 3 == 2 else []
        attach.send_signal(signal.SIGTERM if number % 3 == 1 else signal.SIGKILL)
        for child in below:
            with contextlib.suppress(psutil.Error):
                child.kill()
        attach.wait(DEADLINE_SECONDS)


@pytest.mark.alone  # fills every CPU
def test_a_storm_of_attaches_leaves_nothing_behind(
    victim: User, start_job: Callable[..., Popen], tmp_path: Path
) -> None:
    """No process, no hidden or temporary file, no socket, no place in shared memory, no traced or stopped thread; the job goes on."""
    for name in ("sessions", "shm", "var", "tmp"):
        (tmp_path / name).mkdir()
    job = start_job(victim, BODY)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: attach_and_kill(number, job.pid, tmp_path), range(ATTACHES)))

    until(lambda: not strays(), STRAY_SECONDS)
    files = [path for path in (tmp_path / "sessions").rglob("*") if not path.is_dir()]
    assert len([path for path in files if path.name == "session.json"]) >= ATTACHES // 2
    assert {path.name.partition("-")[0] for path in files} <= {"session.json", "events.jsonl", "readings", "stacks"}
    assert [path for name in ("shm", "var", "tmp") for path in (tmp_path / name).rglob("*")] == []
    assert left_traced(job.pid) == []
    threads = psutil.Process(job.pid).threads()
    states = {Path(f"/proc/{job.pid}/task/{one.id}/stat").read_text().rpartition(")")[2].split()[0] for one in threads}
    assert (len(threads), states) == (9, {"S"})
    assert job.stdin is not None
    job.stdin.write("are you well?\n")
    job.stdin.flush()
    assert line(job) == "well"
