"""What a blocked thread waits for: the system call in /proc/PID/task/TID/syscall, decoded.

The file gives the number, six arguments, the stack and instruction pointer; where an argument is a pointer,
``read_memory`` fetches the struct behind it. So a sleep says when it ends, a futex whether it ever will and the address
of the word that stands for the lock, a poll which descriptors it watches. Nothing is stopped. Layouts: man 2 of each
call, include/uapi/linux/{futex,poll,time}.h, 64-bit only.

Wait *kinds* are stable between kernels; the names of wait channels (wchan) are not: decide by kind and descriptor.
"""

import os
import platform
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from perfwatch_probes.probe import Unavailable
from perfwatch_probes.reading import SECONDS_DECIMALS
from perfwatch_probes.readings import PolledFile, Wait
from perfwatch_probes.syscall_names import KINDS, NAMES

ReadMemory = Callable[[int, int], bytes]  # address, size: at most size bytes; raises Unavailable

PATH_LIMIT_BYTES = 4096  # PATH_MAX
POLLED_LIMIT = 256  # descriptors looked at in one poll or select
_IN, _OUT, _PRIORITY = 1, 4, 2  # poll(2)
_TIMER_ABSTIME = 1
_LONGEST_SECONDS = 100 * 365 * 86400.0  # a moment or a duration beyond is no timespec (any more)
_FUTEX_WAIT, _FUTEX_ABSOLUTE = 0, (6, 9, 11, 13)  # LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
_FUTEX_JOINS = (0, 9)  # WAIT, WAIT_BITSET
_FUTEX_LOCK_PI, _FUTEX_CLOCK_REALTIME, _FUTEX_PRIVATE, _FUTEX_COMMAND = 6, 256, 128, 127
_FUTEX_WAITV = struct.Struct("QQQ")  # struct futex_waitv: value, address, flags and padding
_P_PID, _P_PIDFD = 1, 3
_FCNTL_WAITS = (7, 38)  # F_SETLKW, F_OFD_SETLKW
_AT_FDCWD = -100
_DESCRIPTOR_FIRST = frozenset({"read", "write", "recv", "send", "accept", "connect", "sync", "lock", "ioctl"})
_DESCRIPTOR_ONLY = frozenset({"fstat", "getdents64", "fstatfs"})
_PATH_AFTER_DESCRIPTOR = frozenset(
    """openat openat2 newfstatat statx faccessat faccessat2 readlinkat mkdirat unlinkat renameat renameat2
    utimensat""".split()
)
# restart_syscall stands for a call that a stop interrupted (SIGSTOP, a debugger); the wait channel tells which.
_RESTARTED = (("nanosleep", "clock_nanosleep"), ("futex", "futex"), ("poll", "poll"))


@dataclass(frozen=True)
class Blocked:
    """The system call that a thread is in, before its pointers are followed."""

    name: str
    number: int
    arguments: tuple[int, ...]
    blocked_seconds: float | None  # how long it has been in it, where known
    now: Callable[[int], float]  # seconds on a clock of clock_gettime(2)
    read_memory: ReadMemory

    def remaining(self, duration: float) -> float:
        """Of a relative timeout: exact when we know since when the thread waits, else at most this."""
        return max(0.0, duration - (self.blocked_seconds or 0.0))

    def timespec(self, address: int, fraction: float = 1e-9) -> float:
        """A timespec (or, with 1e-6, a timeval) in the target's memory, in seconds."""
        seconds, parts = struct.unpack("qq", self.read_memory(address, 16))
        if not (0 <= seconds < _LONGEST_SECONDS and 0 <= parts * fraction < 1):
            raise Unavailable("the thread ran on while its memory was read")
        return float(seconds + parts * fraction)


def decode(
    text: str,
    read_memory: ReadMemory,
    *,
    state: str = "S",
    wchan: str | None = None,
    blocked_seconds: float | None = None,
    machine: str | None = None,
    now: Callable[[int], float] = time.clock_gettime,
) -> Wait | None:
    """The blocked call of a thread; None when it is running, stopped or gone.

    Args:
        text: the content of the syscall file.
        read_memory: reads the target's memory; where it raises Unavailable the fields behind the pointer stay unknown.
        state: of the thread; tells a page fault (S or D outside a call) from a stop.
        wchan: resolves a call that was restarted after a stop.
        blocked_seconds: since the thread last ran; subtracted from relative timeouts.
        machine: the architecture, as in uname(2); ours where not given.
        now: seconds on a clock of clock_gettime(2).

    ``joined_tid`` is what a futex shared with the kernel holds: a thread's number only where the process has such a thread.
    """
    words = text.split()
    if not words or words[0] == "running" or state not in "SDI":
        return None
    try:
        number, arguments = int(words[0]), tuple(int(word, 16) for word in words[1:7])
    except ValueError:  # torn: it ended in the middle of the read
        return None
    if number < 0:
        return Wait(call="page_fault", number=number, kind="page_fault")
    if len(arguments) < 6:
        return None
    name = NAMES.get(machine or platform.machine(), {}).get(number, f"syscall_{number}")
    if name == "restart_syscall":
        name = next((call for mark, call in _RESTARTED if mark in (wchan or "")), name)
        if name == "clock_nanosleep" and arguments[0] > 64:  # a pointer, not a clock: the older call
            name = "nanosleep"
    blocked = Blocked(name, number, arguments, blocked_seconds, now, read_memory)
    kind = KINDS.get(name, "other")
    try:
        return _DECODERS.get(kind, _descriptor)(blocked, kind)
    except (Unavailable, struct.error):  # denied or unmapped: what the arguments alone say is still true
        return _bare(blocked, kind)


def _wait(call: Blocked, kind: str, remaining_seconds: float | None = None, **fields: object) -> Wait:
    if remaining_seconds is not None:
        remaining_seconds = round(remaining_seconds, SECONDS_DECIMALS)
    return Wait(call=call.name, number=call.number, kind=kind, remaining_seconds=remaining_seconds, **fields)  # type: ignore[arg-type]


def _bare(call: Blocked, kind: str) -> Wait:
    """What is known without following a pointer."""
    if kind in _DESCRIPTOR_FIRST or call.name.startswith("epoll") or call.name in _DESCRIPTOR_ONLY:
        return _wait(call, kind, fd=_signed(call.arguments[0]))
    if kind == "futex":
        return _wait(call, kind, shared=_is_shared(call), futex_address=_futex_address(call))
    return _wait(call, kind)


def _descriptor(call: Blocked, kind: str) -> Wait:
    """read, recv, accept, fsync, ioctl and their like: the descriptor is the first argument; no timeout."""
    descriptor = None if call.name == "sync" else _signed(call.arguments[0])
    return _wait(call, kind, fd=descriptor, forever=True)


def _lock(call: Blocked, kind: str) -> Wait:
    if call.name == "fcntl" and call.arguments[1] not in _FCNTL_WAITS:
        return _wait(call, "other", fd=_signed(call.arguments[0]))
    return _descriptor(call, kind)


def _sleep(call: Blocked, kind: str) -> Wait:
    if call.name == "nanosleep":
        return _wait(call, kind, remaining_seconds=call.remaining(call.timespec(call.arguments[0])))
    clock, flags, request = _signed(call.arguments[0]), call.arguments[1], call.arguments[2]
    moment = call.timespec(request)
    if not flags & _TIMER_ABSTIME:
        return _wait(call, kind, remaining_seconds=call.remaining(moment))
    try:
        return _wait(call, kind, remaining_seconds=max(0.0, moment - call.now(clock)))
    except OSError:  # a CPU-time clock of the target itself
        return _wait(call, kind)


def _futex(call: Blocked, kind: str) -> Wait:
    operation, timeout = call.arguments[1], call.arguments[3]
    realtime = bool(operation & _FUTEX_CLOCK_REALTIME)
    shared, address = _is_shared(call), _futex_address(call)
    command = operation & _FUTEX_COMMAND
    if call.name in ("futex_waitv", "futex_wait"):  # always absolute, on a clock that is an argument
        timeout = call.arguments[3 if call.name == "futex_waitv" else 4]
        realtime = call.arguments[4 if call.name == "futex_waitv" else 5] == time.CLOCK_REALTIME
        command = _FUTEX_ABSOLUTE[1]
    if not timeout:
        # The kernel clears this word when the thread ends (man 2 set_tid_address), and pthread_join waits for that.
        joined = call.arguments[2] & 0xFFFFFFFF or None if shared and command in _FUTEX_JOINS else None
        return _wait(call, kind, shared=shared, forever=True, joined_tid=joined, futex_address=address)
    moment = call.timespec(timeout)
    remaining = None
    if command == _FUTEX_WAIT:
        remaining = call.remaining(moment)
    elif command in _FUTEX_ABSOLUTE:
        clock = time.CLOCK_REALTIME if realtime or command == _FUTEX_LOCK_PI else time.CLOCK_MONOTONIC
        remaining = max(0.0, moment - call.now(clock))
    return _wait(call, kind, shared=shared, remaining_seconds=remaining, futex_address=address)


def _is_shared(call: Blocked) -> bool:
    """True if other processes can wake the thread by the same word: no private futex."""
    return call.name == "futex" and not call.arguments[1] & _FUTEX_PRIVATE


def _futex_address(call: Blocked) -> int | None:
    """The address of the word that is waited on; None for several at once, and where it cannot be read."""
    if call.name != "futex_waitv":
        return call.arguments[0]
    if call.arguments[1] != 1:
        return None
    try:
        _, address, _ = _FUTEX_WAITV.unpack(call.read_memory(call.arguments[0], _FUTEX_WAITV.size))
    except (Unavailable, struct.error):
        return None
    return int(address)


def _poll(call: Blocked, kind: str) -> Wait:
    """poll, select and epoll. Without descriptors they are a sleep: CPython before 3.11 sleeps in select."""
    first, second, third, fourth, fifth, _ = call.arguments
    if call.name.startswith("epoll"):
        forever, remaining = _timeout(call, fourth, call.name == "epoll_pwait2", 1e-9)
        return _wait(call, kind, fd=_signed(first), forever=forever, remaining_seconds=remaining)
    if call.name in ("poll", "ppoll"):
        polled = _pollfds(call, first, second)
        forever, remaining = _timeout(call, third, call.name == "ppoll", 1e-9)
    else:
        polled = _fd_sets(call, _signed(first), (second, third, fourth))
        forever, remaining = _timeout(call, fifth, True, 1e-6 if call.name == "select" else 1e-9)
    return _wait(call, kind if polled else "sleep", polled=polled, forever=forever, remaining_seconds=remaining)


def _timeout(call: Blocked, argument: int, pointer: bool, fraction: float) -> tuple[bool, float | None]:
    """(for ever, remaining seconds) of a timeout in milliseconds, or of a pointer to one."""
    if pointer:
        if not argument:
            return True, None
        return False, call.remaining(call.timespec(argument, fraction))
    milliseconds = _signed(argument)
    if milliseconds < 0:
        return True, None
    return False, call.remaining(milliseconds / 1000)


def _pollfds(call: Blocked, address: int, count: int) -> tuple[PolledFile, ...]:
    wanted = min(count, POLLED_LIMIT)
    raw = call.read_memory(address, 8 * wanted) if wanted else b""
    return tuple(PolledFile(fd, events) for fd, events, _ in struct.iter_unpack("ihh", raw) if fd >= 0)


def _fd_sets(call: Blocked, count: int, addresses: tuple[int, int, int]) -> tuple[PolledFile, ...]:
    events: dict[int, int] = {}
    for address, event in zip(addresses, (_IN, _OUT, _PRIORITY), strict=True):
        if address and count > 0:
            bits = int.from_bytes(call.read_memory(address, (min(count, POLLED_LIMIT) + 7) // 8), "little")
            for descriptor in range(min(count, POLLED_LIMIT)):
                if bits >> descriptor & 1:
                    events[descriptor] = events.get(descriptor, 0) | event
    return tuple(PolledFile(descriptor, mask) for descriptor, mask in sorted(events.items()))


def _path(call: Blocked, kind: str) -> Wait:
    """open, stat and their like: the path, relative to the descriptor where there is one."""
    relative = call.name in _PATH_AFTER_DESCRIPTOR
    directory = _signed(call.arguments[0]) if relative else _AT_FDCWD
    descriptor = directory if directory != _AT_FDCWD and directory >= 0 else None
    if call.name in _DESCRIPTOR_ONLY:
        return _wait(call, kind, fd=_signed(call.arguments[0]), forever=True)
    raw = call.read_memory(call.arguments[1 if relative else 0], PATH_LIMIT_BYTES)
    path = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    writes = call.name in ("open", "openat") and call.arguments[2 if relative else 1] & os.O_ACCMODE == os.O_WRONLY
    return _wait(call, kind, fd=descriptor, path=path or None, writes=writes, forever=True)


def _child(call: Blocked, kind: str) -> Wait:
    first, second = _signed(call.arguments[0]), _signed(call.arguments[1])
    if call.name == "wait4":
        return _wait(call, kind, child_pid=first, forever=True)
    if first == _P_PIDFD:
        return _wait(call, kind, fd=second, forever=True)
    return _wait(call, kind, child_pid=second if first == _P_PID else 0, forever=True)


def _other(call: Blocked, kind: str) -> Wait:
    if call.name in ("pause", "rt_sigsuspend"):
        return _wait(call, kind, forever=True)
    if call.name == "rt_sigtimedwait":
        forever, remaining = _timeout(call, call.arguments[2], True, 1e-9)
        return _wait(call, kind, forever=forever, remaining_seconds=remaining)
    if call.name == "io_uring_enter":
        return _wait(call, kind, fd=_signed(call.arguments[0]))
    return _wait(call, kind)


def _signed(value: int) -> int:
    """The low 32 bits as a C int."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_DECODERS = {
    "sleep": _sleep,
    "futex": _futex,
    "poll": _poll,
    "open": _path,
    "stat": _path,
    "child": _child,
    "lock": _lock,
    "other": _other,
}
