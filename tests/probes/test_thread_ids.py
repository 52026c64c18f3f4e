"""Names that py-spy gives to threads become the ids of /proc, or 0."""

import struct
from pathlib import Path

import pytest

from perfwatch_probes.thread_ids import ThreadIds


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 500 with threads 500 and 503, which are 1 and 4 in its own PID namespace."""
    for tid, inside in ((500, 1), (503, 4)):
        (tmp_path / "500/task" / str(tid)).mkdir(parents=True)
        (tmp_path / "500/task" / str(tid) / "status").write_text(f"Name:\tpython\nNSpid:\t{tid}\t{inside}\n")
    return tmp_path


def write_record(proc: Path, handle: int, offset: int, tid: int) -> None:
    """The C library's record of a thread, in the memory of process 500."""
    memory = bytearray(handle + 1024)
    struct.pack_into("=I", memory, handle + offset, tid)
    (proc / "500/mem").write_bytes(memory)


def test_a_thread_of_the_process_is_itself(proc: Path) -> None:
    """Nothing is translated where nothing differs."""
    assert ThreadIds(proc).resolve(500, [503]) == {503: 503}


def test_a_number_of_another_namespace_is_translated(proc: Path) -> None:
    """Python in a container says 4 for what is 503 outside."""
    assert ThreadIds(proc).resolve(500, [4]) == {4: 503}


@pytest.mark.parametrize("offset", [720, 208, 48, 32])
def test_a_handle_is_looked_up_in_the_memory(proc: Path, offset: int) -> None:
    """Python before 3.11 has only the pthread handle; the record at that address holds the id (glibc and musl)."""
    handle = 2**22 + 64
    write_record(proc, handle, offset, 503)

    assert ThreadIds(proc).resolve(500, [handle]) == {handle: 503}


def test_a_handle_that_leads_nowhere_is_not_known(proc: Path) -> None:
    """A record without the id of a thread of the process is another C library's: 0, not a guess."""
    handle = 2**22 + 64
    write_record(proc, handle, 720, 777)

    assert ThreadIds(proc).resolve(500, [handle, 2**40]) == {handle: 0, 2**40: 0}


def test_a_record_that_was_reused_is_read_again(proc: Path) -> None:
    """A new thread can have the handle of an old one that ended."""
    handle = 2**22 + 64
    write_record(proc, handle, 720, 503)
    ids = ThreadIds(proc)
    ids.resolve(500, [handle])
    (proc / "500/task/503").rename(proc / "500/task/504")
    (proc / "500/task/504/status").write_text("NSpid:\t504\t5\n")
    write_record(proc, handle, 720, 504)

    assert ids.resolve(500, [handle]) == {handle: 504}


def test_a_process_that_has_ended_keeps_its_names(tmp_path: Path) -> None:
    """There is nothing left to check them against; a handle is never passed off as an id."""
    assert ThreadIds(tmp_path).resolve(500, [503, 2**40]) == {503: 503, 2**40: 0}
