"""The word that a thread waits on: its address, and where it is shared between processes, the file and the place in it."""

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from perfwatch_probes.bounds import MAPS_BYTES
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Wait
from perfwatch_probes.syscalls import decode
from perfwatch_probes.thread import threads
from perfwatch_probes.waits import decode_all, shared_words
from tests.probes.syscall_lines import POINTER, line, x86

Start = Callable[[str], int]
Until = Callable[[Callable[[], bool]], None]

LIVE = Filesystem()
MAPS = b"""\
55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 131      /usr/bin/python3.11
7f1c20000000-7f1c20021000 rw-p 00000000 00:00 0
7f1c2a400000-7f1c2a401000 rw-s 00000000 00:19 1187                       /dev/shm/sem.mp-x7 (deleted)
7f1c2a402000-7f1c2a404000 rw-s 00003000 103:0a 18446744073709551615      /data/a b (deleted)
7f1c2a404000-7f1c2a405000 r-xs 00000000 00:01 77                         /dev/zero
7ffe17400000-7ffe17421000 rw-p 00000000 00:00 0          [stack]
"""
SEMAPHORE = 0x7F1C2A400010


@pytest.mark.parametrize(
    ("address", "device", "inode", "offset_bytes", "unlinked"),
    [
        (SEMAPHORE, "0:25", 1187, 0x10, True),
        (0x7F1C2A403008, "259:10", 2**64 - 1, 0x4008, True),
        (0x7F1C2A404000, "0:1", 77, 0, False),
    ],
)
def test_a_word_in_a_shared_mapping_has_a_file_and_a_place(
    address: int, device: str, inode: int, offset_bytes: int, unlinked: bool
) -> None:
    """The place counts from the beginning of the file, of which a process may have mapped a part; device as mountinfo has it."""
    fields = {
        "futex_device": device,
        "futex_inode": inode,
        "futex_offset_bytes": offset_bytes,
        "futex_unlinked": unlinked,
    }

    assert shared_words(MAPS, [address]) == {address: fields}


@pytest.mark.parametrize("address", [0, 0x7F1C20000010, 0x7F1C2A401000, 0x7FFE17400000, 2**64 - 1])
def test_a_word_elsewhere_has_none(address: int) -> None:
    """In private memory, on the stack, behind the end of a mapping, nowhere."""
    assert shared_words(MAPS, [address]) == {}


@pytest.mark.parametrize("maps", [b"", b"rubbish\n", MAPS[:-200], b"\xff" * 99, b"1-2 rw-s\n"])
def test_mappings_that_are_torn_name_nothing_that_is_not_there(maps: bytes) -> None:
    """A process may end, or map, in the middle of the read."""
    assert set(shared_words(maps, [SEMAPHORE])) <= {SEMAPHORE}


def test_the_address_is_the_first_argument() -> None:
    """Of futex and futex_wait, with and without a timeout, also one that cannot be read."""
    for call in (line(202, SEMAPHORE, 0x189), line(202, SEMAPHORE, 0x80, 0, POINTER), line(455, SEMAPHORE, 0, 0, 2)):
        assert x86(call, {POINTER: struct.pack("qq", 7, 0)}).futex_address == SEMAPHORE
    denied = x86(line(202, SEMAPHORE, 0x109, 0, POINTER), {})
    assert (denied.futex_address, denied.shared, denied.remaining_seconds) == (SEMAPHORE, True, None)


def test_no_other_call_has_one() -> None:
    """The first argument of a read is a descriptor."""
    assert x86(line(0, 3, POINTER, 1)).futex_address is None


@pytest.mark.parametrize(("count", "address"), [(1, SEMAPHORE), (2, None)])
def test_of_several_words_none_is_the_one(count: int, address: int | None) -> None:
    """futex_waitv names them in memory: one is followed, of more it is not known which will be woken."""
    waiter = struct.pack("QQII", 0, SEMAPHORE, 2, 0)

    assert x86(line(449, POINTER, count), {POINTER: waiter}).futex_address == address
    assert x86(line(449, POINTER, count), {}).futex_address is None


class Counted(Filesystem):
    """A machine whose only file is one /proc/PID/maps; says how often it was read."""

    reads: ClassVar[list[int | None]] = []

    def read_bytes(self, path: str | Path, most_bytes: int | None = None) -> bytes:
        """The mappings."""
        assert str(path).endswith("/maps")
        self.reads.append(most_bytes)
        return MAPS


@pytest.fixture
def counted() -> Counted:
    """Not read yet."""
    Counted.reads.clear()
    return Counted(proc=Path("/nonexistent"))


def calls(*words: int, operation: int = 0x109) -> dict[int, tuple[str, str, str | None, float | None]]:
    """Threads that wait for these words."""
    return {tid: (line(202, word, operation), "S", None, None) for tid, word in enumerate(words, start=10)}


def test_mappings_are_read_once_for_all_threads(counted: Counted) -> None:
    """And no more of them than a bound."""
    waits = decode_all(counted, 7, calls(*[SEMAPHORE] * 200, 0x7F1C2A403008), True)

    assert counted.reads == [MAPS_BYTES]
    assert {wait.futex_inode for wait in waits.values()} == {1187, 2**64 - 1}


def test_mappings_are_not_read_where_no_thread_waits_for_another_process(counted: Counted) -> None:
    """Locks between threads are private, and need no file."""
    waits = decode_all(counted, 7, calls(SEMAPHORE, operation=0x189), True)

    assert counted.reads == []
    assert waits[10] == Wait(call="futex", number=202, kind="futex", forever=True, futex_address=SEMAPHORE)


def test_mappings_are_not_read_where_memory_is_not(counted: Counted) -> None:
    """The memory lock of the process is held: reading them would wait for it, too."""
    waits = decode_all(counted, 7, calls(SEMAPHORE), False)

    assert counted.reads == []
    assert (waits[10].futex_address, waits[10].futex_inode) == (SEMAPHORE, None)


def test_mappings_that_may_not_be_read_leave_the_address(tmp_path: Path) -> None:
    """Another user's process: what is not known is None."""
    waits = decode_all(Filesystem(proc=tmp_path), 7, calls(SEMAPHORE), True)

    assert (waits[10].futex_address, waits[10].futex_device) == (SEMAPHORE, None)


def test_a_torn_line_is_no_wait() -> None:
    """As of every call."""

    def denied(address: int, size: int) -> bytes:
        raise Unavailable("denied")

    assert decode("202 0x7f1c2a4000", denied, machine="x86_64") is None


# Its children end with it, by PR_SET_PDEATHSIG.
SHARED_LOCK = """
import ctypes, multiprocessing, time
def wait():
    ctypes.CDLL(None).prctl(1, 9)
    lock.acquire()
context = multiprocessing.get_context("fork")
lock = context.Lock()
lock.acquire()
children = [context.Process(target=wait, daemon=True) for _ in range(2)]
for child in children:
    child.start()
print('ready', flush=True)
time.sleep(1000)
"""
THREADS_LOCK = """
import threading, time
lock = threading.Lock()
lock.acquire()
for _ in range(2):
    threading.Thread(target=lock.acquire, daemon=True).start()
other = threading.Lock()
other.acquire()
threading.Thread(target=other.acquire, daemon=True).start()
print('ready', flush=True)
time.sleep(1000)
"""


def futexes(pid: int, child: KillableChild) -> list[Wait]:
    """What threads of a process wait for for ever."""
    found = threads(LIVE, pid, full=True, child=child)
    return [one.wait for one in found if one.wait and one.wait.kind == "futex" and one.wait.forever]


@pytest.mark.live
def test_two_processes_that_wait_for_one_lock_name_the_same_word(
    start: Start, until: Until, child: KillableChild
) -> None:
    """Device, inode and offset of the semaphore behind a ``multiprocessing.Lock``."""
    parent = start(SHARED_LOCK)

    def waits() -> list[Wait]:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [wait for pid in pids for wait in futexes(int(pid), child) if wait.shared]

    until(lambda: len(waits()) == 2)
    one, other = waits()

    assert one.futex_inode
    assert (one.futex_device, one.futex_inode, one.futex_offset_bytes) == (
        *(other.futex_device, other.futex_inode, other.futex_offset_bytes),
    )


@pytest.mark.live
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="each thread sleeps on a word of its own")
def test_two_threads_that_wait_for_one_lock_name_the_same_address(
    start: Start, until: Until, child: KillableChild
) -> None:
    """And a third one, which waits for another lock, a different one."""
    pid = start(THREADS_LOCK)
    until(lambda: len(futexes(pid, child)) == 3)
    addresses = sorted(str(wait.futex_address) for wait in futexes(pid, child))

    assert len(set(addresses)) == 2
    assert {wait.futex_inode for wait in futexes(pid, child)} == {None}
