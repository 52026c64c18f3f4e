"""What a drill does to its surroundings, undone after its end: cgroup limits, a private /dev/shm, a chatty thread.

Imported by the programs by path, like ``stage``. Everything here needs root, except ``innocent_activity``.
"""

import ctypes
import itertools
import multiprocessing
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CLONE_NEWNS = 0x00020000  # linux/sched.h
CLEANING_ATTEMPTS = 60
PERIOD_US = 100_000  # the kernel's default period of a CPU quota


def typical_seconds(step: Callable[[], object]) -> float:
    """How long ``step`` takes here and now (median of ten after three to warm up): a fault can then be made in proportion."""
    times = []
    for _ in range(13):
        began = time.monotonic()
        step()
        times.append(time.monotonic() - began)
    return statistics.median(times[3:])


class Pace:
    """What a step takes in the loop itself, by the last nine ``with pace:``; processes that this one starts read ``seconds``.

    A fault made in proportion to it costs what it should, whoever comes to share the cores.
    """

    def __init__(self) -> None:
        self._seconds = multiprocessing.RawValue("d", 0.0)  # without a lock: nobody may have to wait here
        self._took: deque[float] = deque(maxlen=9)
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """The median; 0 before the first step."""
        return self._seconds.value

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._took.append(time.monotonic() - self._began)
        self._seconds.value = statistics.median(self._took)


def innocent_activity(strength: str) -> None:
    """For ``masked``: a thread that writes a progress file and prints now and then, whatever the training does."""
    if strength == "masked":
        threading.Thread(target=_report_for_ever, name="progress", daemon=True).start()


def _report_for_ever() -> None:
    with tempfile.TemporaryFile("w") as log:
        for count in itertools.count():
            print(count, time.time(), file=log, flush=True)
            if count % 10 == 0:
                print(f"still here, {time.process_time():.0f} s of CPU", file=sys.stderr, flush=True)
            time.sleep(0.5)


def limit_cpu(cores: float) -> None:
    """Move this process into a new group that may use so many cores; v1 where it is mounted, else v2."""
    quota = str(int(cores * PERIOD_US))
    if (CGROUPS / "cpu" / "cpu.cfs_quota_us").exists():
        _enter(CGROUPS / "cpu", {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota})
    else:
        _enter_v2("cpu", {"cpu.max": f"{quota} {PERIOD_US}"})


def limit_memory(size_bytes: int) -> None:
    """Move this process into a new group; what it touches from now on may take so much memory, page cache included."""
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
        _enter(CGROUPS / "memory", {"memory.limit_in_bytes": str(size_bytes)})
    else:
        _enter_v2("memory", {"memory.high": str(size_bytes)})


def _enter_v2(controller: str, settings: dict[str, str]) -> None:
    root = CGROUPS / "unified" if (CGROUPS / "unified").is_dir() else CGROUPS
    (root / "cgroup.subtree_control").write_text(f"+{controller}")
    _enter(root, settings)


def _enter(parent: Path, settings: dict[str, str]) -> None:
    group = parent / f"drill-{os.getpid()}"
    group.mkdir()
    _after_death(group.rmdir)
    for name, value in settings.items():
        (group / name).write_text(value)
    (group / "cgroup.procs").write_text(str(os.getpid()))


def small_shared_memory(size_bytes: int) -> None:
    """Give this process and its children a /dev/shm of their own, of this size (a private mount namespace)."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise PermissionError("a private /dev/shm needs root")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", "/dev/shm"], check=True)


def scratch_folder() -> Path:
    """Make a folder on a disk (/tmp may lie in memory) that is removed after this process has ended, killed or not."""
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir="/var/tmp"))
    _after_death(lambda: shutil.rmtree(folder))
    return folder


def _after_death(clean: Callable[[], object]) -> None:
    watched = os.pidfd_open(os.getpid())
    middle = os.fork()
    if middle == 0:
        os.setsid()
        ready_read, ready_write = os.pipe()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG: off
            os.write(ready_write, b"!")
            for descriptor in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)  # whoever reads the drill's output must see its end
            ended = select.poll()
            ended.register(watched, select.POLLIN)
            ended.poll()
            _persist(clean)
        else:
            os.read(ready_read, 1)
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(watched)


def _persist(clean: Callable[[], object]) -> None:
    for _ in range(CLEANING_ATTEMPTS):
        try:
            return clean()
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(0.5)  # children of the drill may live on for some seconds, in its group and with its files
