"""Linux calls that Python lacks (prctl, signalfd), and functions that close or replace inherited descriptors.

Each constant names the kernel header it is from.
"""

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Mapping
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
SFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # sys/signalfd.h: SFD_NONBLOCK | SFD_CLOEXEC have these very values
MOST_DESCRIPTORS = 2**20  # fs.nr_open of most machines; a limit may be "infinite"
SIGSET_BYTES = 128  # sigset_t of glibc and musl
SIGNALFD_RECORD_BYTES = 128  # struct signalfd_siginfo
SI_KERNEL = 0x80  # asm-generic/siginfo.h: sent by the kernel, for example by the terminal
REALTIME_MINIMUM = 34  # SIGRTMIN as glibc shows it; the C library keeps 32 and 33 for itself

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when the thread that forked it ends; end now if it has ended already."""
    _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def outlive_parent() -> None:
    """Take ``die_with_parent`` back."""
    _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(0), 0, 0, 0)


def forbid_core_dump() -> None:
    """No core of this process, also where core_pattern is a pipe (which RLIMIT_CORE 0 does not stop)."""
    _libc.prctl(PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)


def signal_mask() -> set[int]:
    """The signals that this thread blocks."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def leads_session() -> bool:
    """True if this process is the leader of its session: a terminal that hangs up tells it alone."""
    return os.getsid(0) == os.getpid()


def set_name(name: str) -> None:
    """What ``ps`` shows as the command of this process (15 characters)."""
    _libc.prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def hide_argument(text: str) -> bool:
    """Overwrite a text in our own command line, as every user reads it in /proc; True if it is gone.

    The kernel shows the memory that it filled at exec (proc(5): arg_start). Processes forked from us have a copy of it. What
    started us, and any that read it before, still know it.
    """
    secret = os.fsencode(text)
    try:
        with open("/proc/self/stat", "rb") as file:
            start = int(file.read().rpartition(b")")[2].split()[45])
        shown = _own_command_line()
        if start == 0 or ctypes.string_at(start, len(shown)) != shown:
            return False
        at = shown.find(secret)
        while at >= 0:
            ctypes.memset(start + at, ord("x"), len(secret))
            at = shown.find(secret, at + len(secret))
        return secret not in _own_command_line()
    except (OSError, ValueError, IndexError):
        return False


def without_coerced_locale(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment as we got it: where no locale was set, Python has set LC_CTYPE (PEP 538), which a job would inherit."""
    if "LC_CTYPE" not in environment:
        return environment
    try:
        with open("/proc/self/environ", "rb") as file:  # as it was at exec
            got = file.read().split(b"\0")
    except OSError:
        return environment
    if any(entry.startswith(b"LC_CTYPE=") for entry in got):
        return environment
    return {name: value for name, value in environment.items() if name != "LC_CTYPE"}


def _own_command_line() -> bytes:
    with open("/proc/self/cmdline", "rb") as file:
        return file.read()


def volunteer_for_the_oom_killer() -> None:
    """If memory runs out, this process goes first, never the job."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # a read-only /proc: then we are as likely as any other


def inherited_descriptors() -> list[int]:
    """Descriptors above stderr that our parent left open for the child (ours are all close-on-exec)."""
    found = []
    for descriptor in _open_descriptors():
        try:
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
        except OSError:
            continue  # the one that listed the folder
    return found


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        # /proc is not mounted, or there is no descriptor left to list it with.
        return list(range(max(1024, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MOST_DESCRIPTORS))))


def detach_from_streams(*descriptors: int) -> None:
    """Point these descriptors at /dev/null, so that no reader or writer at the other end waits for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def occupy_standard_descriptors(inherited: bool) -> None:
    """Open /dev/null where we were started with a stream closed (``2>&-``): a file of ours must not become a stream.

    Args:
        inherited: whether a program that we start has it too, or the stream closed as we got it.
    """
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest, inherited)
    os.close(lowest)


def close_all_but(*kept: int) -> None:
    """Close every descriptor above stderr except these: a forked process would keep them alive for others."""
    for descriptor in _open_descriptors():
        if descriptor > 2 and descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the one that listed the folder


OF_A_TERMINAL: dict[int, str] = {
    signal.SIGINT: "the terminal (Ctrl-C)",
    signal.SIGQUIT: "the terminal (Ctrl-\\)",
    signal.SIGHUP: "the terminal, which was closed",
}


@dataclass(frozen=True)
class Arrival:
    """One signal: its number, where it came from (``si_code``, ``si_pid``; 0 = unknown or the kernel)."""

    number: int
    code: int
    sender: int

    @property
    def from_kernel(self) -> bool:
        """The terminal, a timer, an expired limit: not another process."""
        return self.code == SI_KERNEL or self.code > 0

    @property
    def said(self) -> str:
        """Who sent it, in words; empty where that is not known. The name of a process is its owner's choice."""
        if self.from_kernel or not self.sender:
            return OF_A_TERMINAL.get(self.number, "the kernel") if self.from_kernel else ""
        try:
            with open(f"/proc/{self.sender}/comm", "rb") as file:
                name = file.read(64).decode("ascii", "replace").strip()
        except OSError:
            return f"pid {self.sender}"  # it has ended, as kill does at once
        return f"pid {self.sender} ({''.join(one if one.isalnum() or one in '.+_-' else '?' for one in name)})"


class SignalFile:
    """Every signal of this process as a readable file (signalfd): no handler, no race, and the sender is known.

    Raises OSError, with no signal blocked, when there is no descriptor left.
    """

    def __init__(self) -> None:
        self.original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        everything = ctypes.create_string_buffer(b"\xff" * SIGSET_BYTES, SIGSET_BYTES)
        self._descriptor = _libc.signalfd(-1, everything, SFD_FLAGS)
        if self._descriptor < 0:
            error = ctypes.get_errno()
            signal.pthread_sigmask(signal.SIG_SETMASK, self.original_mask)
            raise OSError(error, os.strerror(error))

    def fileno(self) -> int:
        """For poll()."""
        return int(self._descriptor)

    def arrivals(self) -> list[Arrival]:
        """The signals that have come since the last call. Raises OSError when the file is no signalfd any more."""
        try:
            records = os.read(self._descriptor, SIGNALFD_RECORD_BYTES * 32)
        except BlockingIOError:
            return []
        if not records:  # a signalfd has no end: to wait on would be to spin, and the child's end would never come
            raise OSError("the signals cannot be read any more")
        return [
            Arrival(number, code, sender)
            for start in range(0, len(records), SIGNALFD_RECORD_BYTES)
            for number, _, code, sender in [struct.unpack_from("=IiiI", records, start)]
        ]
