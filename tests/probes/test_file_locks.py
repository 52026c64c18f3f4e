"""Who holds a lock: whoever took it, or who has inherited the file from one that has ended; and what they have started."""

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch_probes.file_locks import lock_holders, parse_locks, started_by
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.holders import Holders
from perfwatch_probes.mounts import parse_mountinfo

LIVE = Filesystem()
LOCK_TO_WRITE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock of fcntl(2)
LOCKS = """1: FLOCK  ADVISORY  WRITE 700 fe:00:77 0 EOF
1: -> FLOCK  ADVISORY  WRITE 701 fe:00:77 0 EOF
2: POSIX  ADVISORY  READ  702 fe:00:77 0 9
3: OFDLCK ADVISORY  WRITE -1 fe:00:78 0 EOF
4: FLOCK  ADVISORY  WRITE 703 00:34:77 0 EOF
5: FLOCK  ADVISORY  WRITE 0 00:34:79 0 EOF
"""
# As a shell script does with flock(1): a child takes the lock on a file that it was given, and ends.
SCRIPT = """
import fcntl, os, subprocess, sys
os.set_inheritable(lock := os.open(sys.argv[1], os.O_WRONLY), True)
if os.fork() == 0:
    fcntl.flock(lock, fcntl.LOCK_EX)
    os._exit(0)
os.wait()
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


@pytest.mark.parametrize(
    ("device", "inode", "took"),
    [("254:0", 77, (700, 702)), ("0:52", 77, (703,)), ("254:0", 78, (-1,)), ("0:52", 79, (0,)), ("0:52", 80, ())],
)
def test_lock_takers_by_inode_and_device(device: str, inode: int, took: tuple[int, ...]) -> None:
    """Only those who took a lock on this very file: not those who wait, nor those of its namesake elsewhere."""
    assert parse_locks(LOCKS, device, inode) == took


@pytest.mark.live
def test_who_has_inherited_a_locked_file_holds_its_lock(tmp_path: Path) -> None:
    """The one that took it is gone; the script and what it has started have the file open yet, or not."""
    path = tmp_path / "cache.lock"
    path.touch()
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert script.stdout is not None
    child = int(script.stdout.readline())
    found = lock_holders(LIVE, device_of(path), path.stat().st_ino, str(path), Holders(LIVE, first=[script.pid]))
    started = started_by(LIVE, found)
    script.communicate()

    assert found == (script.pid,)
    assert started == (child,)


def test_a_lock_of_an_open_file_is_held_by_who_has_it_open(tmp_path: Path) -> None:
    """The kernel names no process (-1)."""
    path = tmp_path / "cache.lock"
    with open(path, "w") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, LOCK_TO_WRITE)
        found = lock_holders(LIVE, device_of(path), path.stat().st_ino, str(path), Holders(LIVE, first=[os.getpid()]))

    assert found == (os.getpid(),)


def test_nobody_holds_what_nobody_has_locked(tmp_path: Path) -> None:
    """Nor what lies on a mount that is not known; and nobody has started anything."""
    path = tmp_path / "cache.lock"
    path.touch()

    assert lock_holders(LIVE, device_of(path), path.stat().st_ino, str(path), Holders(LIVE)) == ()
    assert lock_holders(LIVE, None, 1, str(path), Holders(LIVE)) == ()
    assert started_by(LIVE, ()) == ()


def device_of(path: Path) -> str:
    """major:minor of its mount, as mountinfo writes it."""
    mounts = parse_mountinfo(LIVE.read_text("/proc/self/mountinfo")).values()
    inside = [mount for mount in mounts if path.is_relative_to(mount.point)]
    return max(inside, key=lambda mount: len(mount.point)).device
