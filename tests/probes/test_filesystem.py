"""The rooted filesystem: what comes back, and what each refusal is called."""

import errno
import os
from pathlib import Path

import pytest

from perfwatch_probes.filesystem import Absent, Denied, Filesystem, unavailable
from perfwatch_probes.probe import Unavailable


def test_reads_below_its_own_root(tmp_path: Path) -> None:
    """A test or a container can put /proc anywhere."""
    (tmp_path / "meminfo").write_text("MemTotal: 12 kB\n")

    assert Filesystem(proc=tmp_path).read_text(tmp_path / "meminfo") == "MemTotal: 12 kB\n"


def test_lists_processes_and_threads_in_order(recorded: Filesystem) -> None:
    """Names that are not numbers are left out, and numbers are sorted as numbers."""
    assert recorded.processes() == [4100]
    assert recorded.tasks(4100) == [4100, 4101, 4102]


def test_a_file_that_may_be_large_is_read_up_to_a_size(tmp_path: Path) -> None:
    """As the mappings of a process with very many of them."""
    (tmp_path / "maps").write_bytes(b"7f00-7f01 r-xp\n" * 20_000)

    assert len(Filesystem(proc=tmp_path).read_bytes(tmp_path / "maps", 70_000)) == 70_000


def test_missing_file_is_absent(tmp_path: Path) -> None:
    """A file that is not there is told apart from one that may not be read."""
    with pytest.raises(Absent, match="is not there"):
        Filesystem(proc=tmp_path).read_bytes(tmp_path / "7" / "stat")


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ESRCH, Absent), (errno.ENOENT, Absent), (errno.EACCES, Denied), (errno.EPERM, Denied)],
)
def test_errors_are_states_of_the_world(code: int, kind: type[Unavailable]) -> None:
    """The kernel's error codes become the three ways in which a file can be unavailable."""
    assert type(unavailable(OSError(code, "no"), "/proc/7/io")) is kind


def test_denial_says_how_to_get_permission() -> None:
    """A refusal names the capability that ends it."""
    assert "CAP_SYS_PTRACE" in unavailable(PermissionError(errno.EACCES, "Permission denied"), "/proc/7/io").advice


def test_other_errors_keep_the_kernels_words() -> None:
    """An error that we have no name for is passed on in words."""
    error = unavailable(OSError(errno.EIO, "Input/output error"), "/proc/7/environ")

    assert type(error) is Unavailable
    assert error.reason == "/proc/7/environ cannot be read: Input/output error"


def test_bytes_that_are_no_text_can_be_recorded(tmp_path: Path) -> None:
    """The names of threads and files may hold any bytes."""
    (tmp_path / "comm").write_bytes(b"a\xff\n")
    os.symlink(os.fsdecode(b"/data/caf\xe9.bin"), tmp_path / "fd")
    filesystem = Filesystem(proc=tmp_path)

    assert filesystem.read_text(tmp_path / "comm") == "a\ufffd\n"
    assert filesystem.readlink(tmp_path / "fd") == "/data/caf\ufffd.bin"
