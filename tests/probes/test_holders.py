"""Who holds the ends of a pipe: every readable process, within bounds, reading links only."""

import os
from pathlib import Path

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.holders import Holders, access_of


def hold(root: Path, pid: int, fd: int, target: str, flags: str = "0100000") -> None:
    """A process with one open descriptor."""
    for name in ("fd", "fdinfo"):
        (root / str(pid) / name).mkdir(parents=True, exist_ok=True)
    (root / str(pid) / "fd" / str(fd)).symlink_to(target)
    (root / str(pid) / "fdinfo" / str(fd)).write_text(f"pos:\t0\nflags:\t{flags}\nmnt_id:\t15\nino:\t77\n")


def test_both_ends_of_a_pipe_are_found(tmp_path: Path) -> None:
    """Who may read it and who may write it, by the flags of each descriptor."""
    hold(tmp_path, 10, 3, "pipe:[77]", "00")
    hold(tmp_path, 10, 4, "pipe:[77]", "01")
    hold(tmp_path, 11, 1, "pipe:[77]", "0100001")
    hold(tmp_path, 12, 1, "pipe:[78]", "01")

    assert Holders(Filesystem(proc=tmp_path)).ends("pipe:[77]") == ((10,), (10, 11))


def test_fifo_opened_both_ways_has_both_ends(tmp_path: Path) -> None:
    """A descriptor that may read and write counts at both ends."""
    hold(tmp_path, 10, 3, "/tmp/f", "02")

    assert Holders(Filesystem(proc=tmp_path)).ends("/tmp/f") == ((10,), (10,))


def test_process_that_hides_its_files_is_passed_over(tmp_path: Path) -> None:
    """Another user's process shows no descriptors: it is not among the holders, and nothing fails."""
    (tmp_path / "9").mkdir()
    hold(tmp_path, 10, 3, "pipe:[77]")

    assert Holders(Filesystem(proc=tmp_path)).pids("pipe:[77]") == (10,)


def test_named_processes_come_first_and_time_is_bounded(tmp_path: Path) -> None:
    """When time runs out the job's own processes have been seen, and the index says that it is not complete."""
    for pid in (10, 11, 12):
        hold(tmp_path, pid, 3, "pipe:[77]")
    moments = iter([0.0, 0.1, 99.0])
    holders = Holders(Filesystem(proc=tmp_path), first=[12], now=lambda: next(moments))

    assert holders.pids("pipe:[77]") == (12,)
    assert not holders.complete


def test_descriptor_closed_meanwhile_has_no_end(tmp_path: Path) -> None:
    """A descriptor whose details are gone is neither reader nor writer."""
    hold(tmp_path, 10, 3, "pipe:[77]")
    (tmp_path / "10" / "fdinfo" / "3").unlink()

    assert Holders(Filesystem(proc=tmp_path)).ends("pipe:[77]") == ((), ())


def test_access_from_flags() -> None:
    """Read, write, both, or a mere reference (O_PATH)."""
    assert [access_of(f"flags:\t{flags}\n") for flags in ("0100000", "0100001", "02", f"{os.O_PATH:o}")] == [
        "r", "w", "rw", "",
    ]  # fmt: skip
    assert access_of("") == ""


def test_living_pipe_is_found() -> None:
    """This process holds both ends of a pipe that it has just made."""
    readable, writable = os.pipe()
    try:
        target = os.readlink(f"/proc/self/fd/{readable}")

        assert Holders(Filesystem(), first=[os.getpid()]).ends(target) == ((os.getpid(),), (os.getpid(),))
    finally:
        os.close(readable)
        os.close(writable)


def test_eventfds_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    """All have one link; those who hold the same one hold the same number."""
    for pid, fd, number in ((10, 3, "5"), (11, 7, "5"), (12, 3, "6")):
        hold(tmp_path, pid, fd, "anon_inode:[eventfd]", "02")
        info = tmp_path / str(pid) / "fdinfo" / str(fd)
        info.write_text(f"{info.read_text()}eventfd-count:                0\neventfd-id: {number}\n")

    assert Holders(Filesystem(proc=tmp_path)).of_eventfd("anon_inode:[eventfd]", "5") == (10, 11)
