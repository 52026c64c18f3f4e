"""Tells a signal for the launcher alone from one for its whole process group.

``kill PID`` must be passed on to the child; of ``kill %1``, ``systemctl stop`` or a terminal's Ctrl-C the child has its
own copy, and a second one would cut short torchrun's orderly end, for example. The kernel does not say which it was, so
a process with no other work stands in the group: what it feels as well, the child has felt.
"""

import contextlib
import os
import signal
import socket
import struct
import time
from typing import NoReturn

from perfwatch.processes import linux
from perfwatch_probes.readable import readable

# kill(2) on a group reaches all of it in one system call; systemd and Slurm walk a list of pids for some milliseconds.
SPREAD_SECONDS = 0.02
SAME_SECONDS = 1.0  # reports older than this belong to an earlier signal; none takes longer
LOOK_SECONDS = 0.002  # between two looks at a sentry that waits for a CPU
_REPORT = struct.Struct("=id")


class Sentry:
    """The process, and what it has reported."""

    def __init__(self) -> None:
        """Every signal must be blocked already: the sentry inherits the mask."""
        self._reports: list[tuple[int, float]] = []
        self._socket: socket.socket | None = None
        self._pid = 0
        launcher = os.getpid()
        try:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.setblocking(False)
            with theirs:
                self._pid = os.fork()
                if self._pid == 0:
                    _stand(launcher, theirs)
        except OSError:
            pass  # no process, memory or descriptor left: every signal counts as ours alone then

    def felt(self, arrival: linux.Arrival) -> bool:
        """True if the sentry got this signal too.

        Where a process sent the signal, the sentry gets 20 ms for it, and up to 1 s while it has a signal to report: on a busy machine
        it waits for a CPU.
        """
        began = time.monotonic()
        ends = began + (0.0 if arrival.from_kernel else SPREAD_SECONDS)
        while True:
            rests = self._rests()  # before the reports are read: what it got by then is among them if it rests
            self._collect()
            for report in self._reports:
                if report[0] == arrival.number:
                    self._reports.remove(report)
                    return True
            now = time.monotonic()
            if self._socket is None or now - began >= SAME_SECONDS or (rests and now >= ends):
                return False
            readable(max(ends - now, LOOK_SECONDS), self._socket)

    def _rests(self) -> bool:
        """True if the sentry sleeps and no signal is pending for it, if it has ended, or if that cannot be read."""
        try:
            with open(f"/proc/{self._pid}/status", "rb") as file:
                lines = dict(line.split(b":", 1) for line in file.read().splitlines())
            state, pending = lines[b"State"].split()[0], int(lines[b"ShdPnd"], 16) | int(lines[b"SigPnd"], 16)
            return state == b"Z" or (state == b"S" and not pending)
        except (OSError, KeyError, ValueError):
            return True

    def dismiss(self) -> None:
        """End the process and reap it: nothing is felt any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # our parent had SIGCHLD ignored: the kernel reaped it
                os.waitpid(self._pid, 0)
            self._pid = 0

    def _collect(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(_REPORT.size)
            except OSError:
                break
            if not data:
                break  # it was killed, or never began
            self._reports.append(_REPORT.unpack(data))
        oldest = time.monotonic() - SAME_SECONDS
        self._reports = [report for report in self._reports if report[1] > oldest]


def _stand(launcher: int, reports: socket.socket) -> NoReturn:
    try:
        linux.die_with_parent(launcher)
        linux.set_name("perfwatch-sentry")
        linux.close_all_but(reports.fileno())
        linux.detach_from_streams(0, 1, 2)
        everything = signal.valid_signals()
        while True:
            number = signal.sigwait(everything)  # all are blocked: the mask is the launcher's
            reports.send(_REPORT.pack(number, time.monotonic()), socket.MSG_NOSIGNAL)
    finally:
        os._exit(0)
