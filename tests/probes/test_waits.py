"""Waits read with memory: mappings that end, addresses that nobody has, and paths relative to a folder."""

import ctypes
import os
from pathlib import Path

import pytest

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Wait
from perfwatch_probes.waits import Memory, absolute, decode_all

LIVE = Filesystem()


def opened(path: str, fd: int | None = None) -> Wait:
    """A thread that opens a path."""
    return Wait(call="openat", number=257, kind="open", path=path, fd=fd)


def test_relative_path_is_completed(tmp_path: Path) -> None:
    """A path is relative to the working folder, or to the descriptor of the call."""
    (tmp_path / "10" / "fd").mkdir(parents=True)
    (tmp_path / "10" / "cwd").symlink_to("/home/ada/run")
    (tmp_path / "10" / "fd" / "5").symlink_to("/data")
    filesystem = Filesystem(proc=tmp_path)

    assert absolute(filesystem, 10, opened("train.lock")) == "/home/ada/run/train.lock"
    assert absolute(filesystem, 10, opened("shard", 5)) == "/data/shard"
    assert absolute(filesystem, 10, opened("/etc/hosts")) == "/etc/hosts"
    assert absolute(filesystem, 11, opened("train.lock")) == "train.lock"


def test_memory_of_a_living_process() -> None:
    """Bytes of this very process, read from outside as it were."""
    buffer = ctypes.create_string_buffer(b"/data/shard")

    assert Memory(LIVE, os.getpid()).read(ctypes.addressof(buffer), 11) == b"/data/shard"


@pytest.mark.parametrize("address", [0, 1 << 63])
def test_unmapped_address_is_unavailable(address: int) -> None:
    """A pointer that leads nowhere is a missing witness."""
    with pytest.raises(Unavailable):
        Memory(LIVE, os.getpid()).read(address, 16)


def test_memory_that_may_not_be_read(tmp_path: Path) -> None:
    """Without the memory file the arguments alone are decoded."""
    calls = {
        7: ("230 0x1 0x1 0x7fff0000 0x0 0x0 0x0 0x0 0x0", "S", None, None),
        8: ("0 0x3 0x7fff0000 0x1 0x0 0x0 0x0 0x0 0x0", "S", None, None),
        9: ("running", "R", None, None),
    }

    assert set(decode_all(Filesystem(proc=tmp_path), 10, calls, True)) == {7, 8}
    with pytest.raises(Unavailable):
        Memory(Filesystem(proc=tmp_path), 10).read(0, 1)


def test_joined_thread_is_told_from_a_lock_between_processes(tmp_path: Path) -> None:
    """pthread_join waits at the number of a living thread of the same process; a semaphore, or a number that is no thread's, is shared."""
    for tid in (7, 18392):
        (tmp_path / "7" / "task" / str(tid)).mkdir(parents=True)
    calls = {
        7: ("202 0x7f5bc0728990 0x109 0x47d8 0x0 0x0 0xffffffff 0x7ffe174be240 0x7f5bc07b1f16", "S", None, None),
        8: ("202 0x7f5bc0728990 0x109 0x9999 0x0 0x0 0xffffffff 0x7ffe174be240 0x7f5bc07b1f16", "S", None, None),
        9: ("202 0x7f5bc0728990 0x109 0x0 0x0 0x0 0xffffffff 0x7ffe174be240 0x7f5bc07b1f16", "S", None, None),
    }

    waits = decode_all(Filesystem(proc=tmp_path), 7, calls, False)

    assert {tid: (wait.shared, wait.joined_tid) for tid, wait in waits.items()} == {
        7: (False, 18392),
        8: (True, None),
        9: (True, None),
    }
