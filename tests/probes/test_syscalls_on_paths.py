"""Blocked system calls that open, look at or list what is in the file system."""

import pytest

from tests.probes.syscall_lines import POINTER, line, x86


@pytest.mark.parametrize(
    ("text", "descriptor"),
    [
        (line(2, POINTER, 0), None),
        (line(257, (1 << 64) - 100, POINTER, 0), None),
        (line(257, 5, POINTER, 0), 5),
        (line(4, POINTER, 0), None),
        (line(262, 0xFFFFFF9C, POINTER, 0), None),
        (line(332, 0xFFFFFF9C, POINTER, 0), None),
    ],
)
def test_calls_on_a_path(text: str, descriptor: int | None) -> None:
    """The path that is being opened or looked at, and the folder that it is relative to, if any."""
    wait = x86(text, {POINTER: b"/data/shard-000.tar\0garbage"})

    assert (wait.path, wait.fd) == ("/data/shard-000.tar", descriptor)
    assert wait.kind in ("open", "stat")


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        (line(2, POINTER, 0), False),
        (line(2, POINTER, 1), True),
        (line(257, (1 << 64) - 100, POINTER, 0o100001), True),
        (line(257, (1 << 64) - 100, POINTER, 2), False),
        (line(4, POINTER, 1), False),
    ],
)
def test_open_for_writing_alone_is_told(text: str, writes: bool) -> None:
    """A FIFO that is opened so waits for a reader; a ``stat`` opens nothing."""
    assert x86(text, {POINTER: b"/run/events\0"}).writes is writes


def test_reading_a_folder_has_a_descriptor() -> None:
    """getdents64 works on an open folder: there is no path to read."""
    assert x86(line(217, 6, POINTER, 32768)).fd == 6
