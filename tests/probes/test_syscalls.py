"""Blocked system calls, decoded from recorded text and recorded memory, on both architectures."""

import struct

import pytest

from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import PolledFile, Wait
from perfwatch_probes.syscall_names import KINDS, NAMES
from perfwatch_probes.syscalls import decode
from tests.probes.syscall_lines import MONOTONIC, POINTER, line, x86

FOREVER = (1 << 64) - 1  # -1 as the kernel prints it


def denied(address: int, size: int) -> bytes:
    """A process whose memory we may not read."""
    raise Unavailable("denied")


def test_absolute_sleep_tells_when_it_ends() -> None:
    """CPython sleeps until a moment: what remains is that moment less now."""
    wait = x86(line(230, 1, 1, POINTER), {POINTER: struct.pack("qq", 1013, 500_000_000)})

    assert wait == Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=13.5)


def test_relative_sleep_counts_from_when_it_began() -> None:
    """A duration alone is an upper bound; with the time since the thread last ran it is exact."""
    content = {POINTER: struct.pack("qq", 60, 0)}

    assert x86(line(35, POINTER), content).remaining_seconds == 60
    assert x86(line(230, 0, 0, POINTER), content, blocked_seconds=45.0).remaining_seconds == 15


def test_overdue_sleep_is_not_negative() -> None:
    """A thread that is late to wake has nothing left to wait for."""
    assert x86(line(230, 1, 1, POINTER), {POINTER: struct.pack("qq", 900, 0)}).remaining_seconds == 0


def test_sleep_with_unreadable_memory_is_still_a_sleep() -> None:
    """Where memory is denied, the call is named and its end is unknown, not zero and not never."""
    wait = decode(line(230, 1, 1, POINTER), denied, machine="x86_64")

    assert wait == Wait(call="clock_nanosleep", number=230, kind="sleep")


def test_lock_without_timeout_waits_for_ever() -> None:
    """A futex with a null timeout never wakes by itself."""
    wait = x86(line(202, 0x5616AE7618D0, 0x189, 0, 0, 0, 0xFFFFFFFF))

    assert wait == Wait(call="futex", number=202, kind="futex", forever=True, futex_address=0x5616AE7618D0)


@pytest.mark.parametrize(
    ("operation", "seconds", "remaining"),
    [
        (0x80, 7, 7.0),  # FUTEX_WAIT | PRIVATE: relative
        (0x89, 1007, 7.0),  # FUTEX_WAIT_BITSET | PRIVATE: absolute, monotonic (the GIL)
        (0x189, 5007, 7.0),  # the same on the wall clock
        (0x86, 5007, 7.0),  # FUTEX_LOCK_PI: always the wall clock
    ],
)
def test_futex_timeouts(operation: int, seconds: int, remaining: float) -> None:
    """Relative or absolute, and on which clock, is in the operation."""
    wait = x86(line(202, 64, operation, 0, POINTER), {POINTER: struct.pack("qq", seconds, 0)})

    assert (wait.remaining_seconds, wait.forever) == (remaining, False)


def test_futex_waitv_uses_its_own_arguments() -> None:
    """The newer call has its timeout and clock elsewhere."""
    wait = x86(line(449, 64, 2, 0, POINTER, MONOTONIC), {POINTER: struct.pack("qq", 1002, 0)})

    assert (wait.call, wait.remaining_seconds) == ("futex_waitv", 2)


@pytest.mark.parametrize(
    ("number", "call", "kind"),
    [
        (0, "read", "read"), (1, "write", "write"), (45, "recvfrom", "recv"), (47, "recvmsg", "recv"),
        (44, "sendto", "send"), (288, "accept4", "accept"), (42, "connect", "connect"), (74, "fsync", "sync"),
        (75, "fdatasync", "sync"), (73, "flock", "lock"), (16, "ioctl", "ioctl"), (3, "close", "sync"),
    ],
)  # fmt: skip
def test_calls_on_a_descriptor(number: int, call: str, kind: str) -> None:
    """The descriptor is the first argument, and nothing ends the wait but its other end."""
    wait = x86(line(number, 7, POINTER, 4096))

    assert wait == Wait(call=call, number=number, kind=kind, fd=7, forever=True)


def test_fcntl_waits_only_for_locks() -> None:
    """F_SETLKW waits for a lock; other fcntl calls are something else."""
    assert x86(line(72, 5, 7, POINTER)).kind == "lock"
    assert x86(line(72, 5, 3, 0)).kind == "other"


def test_poll_names_its_descriptors_and_end() -> None:
    """Each polled descriptor with its mask, without the ignored ones; -1 milliseconds is for ever."""
    content = {POINTER: struct.pack("ihhihhihh", 4, 1, 0, -1, 1, 0, 9, 4, 0)}

    assert x86(line(7, POINTER, 3, 5000), content, blocked_seconds=2.0) == Wait(
        call="poll", number=7, kind="poll", polled=(PolledFile(4, 1), PolledFile(9, 4)), remaining_seconds=3.0
    )
    assert x86(line(7, POINTER, 3, 0xFFFFFFFF), content).forever


def test_ppoll_reads_its_timeout() -> None:
    """A pointer to a timespec, or null."""
    content = {POINTER: struct.pack("ihh", 4, 1, 0), 64: struct.pack("qq", 2, 0)}

    assert x86(line(271, POINTER, 1, 64), content).remaining_seconds == 2
    assert x86(line(271, POINTER, 1, 0), content).forever


def test_select_merges_its_sets() -> None:
    """A descriptor in two sets has both masks; the timeout of select is in microseconds, of pselect6 in nanoseconds."""
    content = {16: (1 << 3 | 1 << 9).to_bytes(8, "little"), 32: (1 << 9).to_bytes(8, "little")}
    content[64] = struct.pack("qq", 1, 500_000)

    wait = x86(line(23, 10, 16, 32, 0, 64), content)

    assert wait.polled == (PolledFile(3, 1), PolledFile(9, 5))
    assert wait.remaining_seconds == 1.5
    assert x86(line(270, 10, 16, 32, 0, 64), content).remaining_seconds == pytest.approx(1.0005)


def test_select_without_descriptors_is_a_sleep() -> None:
    """CPython before 3.11 sleeps in select; a poll of nothing is a sleep too."""
    content = {64: struct.pack("qq", 30, 0)}

    assert x86(line(23, 0, 0, 0, 0, 64), content).kind == "sleep"
    assert x86(line(7, 0, 0, 30_000)).kind == "sleep"


def test_epoll_names_its_own_descriptor() -> None:
    """epoll watches what its descriptor holds; its timeout is in milliseconds, or a pointer for epoll_pwait2."""
    assert x86(line(232, 11, POINTER, 64, 100_000)) == Wait(
        call="epoll_wait", number=232, kind="poll", fd=11, remaining_seconds=100.0
    )
    assert x86(line(281, 11, POINTER, 64, FOREVER)).forever
    assert x86(line(441, 11, POINTER, 64, 64), {64: struct.pack("qq", 3, 0)}).remaining_seconds == 3


@pytest.mark.parametrize(
    ("text", "child", "descriptor"),
    [
        (line(61, 4242, POINTER, 0), 4242, None),
        (line(61, 0xFFFFFFFF, POINTER, 0), -1, None),
        (line(247, 1, 4242, POINTER, 4), 4242, None),
        (line(247, 0, 0, POINTER, 4), 0, None),
        (line(247, 3, 8, POINTER, 4), None, 8),
    ],
)
def test_waiting_for_a_child(text: str, child: int | None, descriptor: int | None) -> None:
    """Which child is awaited: one pid, any, or the one behind a pidfd."""
    wait = x86(text)

    assert (wait.kind, wait.child_pid, wait.fd, wait.forever) == ("child", child, descriptor, True)


def test_waiting_for_a_signal() -> None:
    """pause never ends by itself; rt_sigtimedwait may."""
    assert x86(line(34)).forever
    assert x86(line(128, POINTER, 0, 64), {64: struct.pack("qq", 9, 0)}).remaining_seconds == 9
    assert x86(line(128, POINTER, 0, 0)).forever


@pytest.mark.parametrize(
    ("wchan", "arguments", "call", "kind"),
    [
        ("hrtimer_nanosleep", (1, 0, POINTER), "clock_nanosleep", "sleep"),
        ("hrtimer_nanosleep", (POINTER, 0), "nanosleep", "sleep"),
        ("futex_wait_queue", (64, 0x80, 0, POINTER), "futex", "futex"),
        ("futex_do_wait", (64, 0x80, 0, POINTER), "futex", "futex"),
        ("do_sys_poll", (8, 1, 5000), "poll", "poll"),
        (None, (1, 0, POINTER), "restart_syscall", "other"),
    ],
)
def test_call_restarted_after_a_stop(wchan: str | None, arguments: tuple[int, ...], call: str, kind: str) -> None:
    """After SIGCONT the number is that of restart_syscall; the wait channel, in any kernel, tells the call."""
    content = {POINTER: struct.pack("qq", 60, 0), 8: struct.pack("ihh", 4, 1, 0)}
    wait = x86(line(219, *arguments), content, wchan=wchan)

    assert (wait.call, wait.kind, wait.number) == (call, kind, 219)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("running\n", "R"),
        ("", "S"),
        ("202 0x", "S"),
        ("202 0x1", "S"),
        (line(0, 3), "R"),
        (line(0, 3), "T"),
        ("-1 0x1\n", "T"),
    ],
)
def test_what_is_not_blocked_is_no_wait(text: str, state: str) -> None:
    """Running, stopped and ended threads wait for nothing that this file could tell."""
    assert decode(text, denied, state=state, machine="x86_64") is None


def test_blocked_outside_a_call_is_a_page_fault() -> None:
    """A thread that sleeps without a system call waits for memory: a mapped file, or swap."""
    wait = decode("-1 0x7ffd1a2b 0x7f26d155\n", denied, state="D", machine="x86_64")

    assert wait is not None
    assert wait.kind == "page_fault"


def test_unknown_call_keeps_its_number() -> None:
    """A call that is not in the table is named by its number, on an architecture that is not, too."""
    assert x86(line(999)).call == "syscall_999"
    wait = decode(line(0, 3), denied, machine="riscv64")
    assert wait is not None
    assert (wait.call, wait.kind) == ("syscall_0", "other")


def test_same_calls_on_aarch64() -> None:
    """The numbers differ, the meaning does not."""
    wait = decode(line(98, 64, 0x80, 0, 0), denied, machine="aarch64")
    read = decode(line(63, 3, POINTER, 1), denied, machine="aarch64")

    assert wait is not None
    assert read is not None
    assert (wait.call, wait.forever, read.call, read.fd) == ("futex", True, "read", 3)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_kind_has_its_calls(machine: str) -> None:
    """No architecture lacks a kind of wait."""
    named = {KINDS[name] for name in NAMES[machine].values() if name in KINDS}

    assert named == set(KINDS.values())


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
