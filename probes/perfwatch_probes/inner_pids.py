"""Our own numbers of the processes of a PID namespace, by the numbers that they have there: what is written in a container has those.

Sources: proc_pid_status(5) (``NSpid``: from our namespace inwards), pid_namespaces(7).
"""

import os
from pathlib import Path

from perfwatch_probes.bounds import KERNEL_FILE_BYTES
from perfwatch_probes.locked_files import read_kernel_file
from perfwatch_probes.stat import parse_pairs, stat_fields


class InnerPids:
    """Those of the namespace of one process.

    Args:
        pid: a process in it.
        proc: root of our own /proc.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._proc, self._namespace = proc, _namespace(proc / str(pid))
        self._known: dict[int, tuple[int, int]] = {}  # by the number there: ours, and the start time

    def outer(self, inner: int, start_ticks: int | None = None) -> int | None:
        """Our number of a process. start_ticks: when it started; None: of the last process that was asked for by this number.

        None where our /proc shows no such process.
        """
        known = self._known.get(inner)
        if known is not None and start_ticks in (None, known[1]):
            return known[0]
        if start_ticks is None:
            return None
        for name in os.listdir(self._proc):
            if name.isdecimal() and self._is(self._proc / name, inner, start_ticks):
                self._known[inner] = int(name), start_ticks
                return int(name)
        return None

    def outer_thread(self, pid: int, inner: int) -> int:
        """Our number of a thread of a process of ours; 0 where it has ended."""
        try:
            threads = os.listdir(self._proc / str(pid) / "task")
            return next((int(one) for one in threads if _innermost(self._proc / str(pid) / "task" / one) == inner), 0)
        except OSError:
            return 0

    def _is(self, entry: Path, inner: int, start_ticks: int) -> bool:
        try:
            if int(stat_fields(entry)[19]) != start_ticks:
                return False
        except (OSError, ValueError, IndexError):
            return False
        return _innermost(entry) == inner and _namespace(entry) == self._namespace != ""


def _innermost(entry: Path) -> int | None:
    """The number of a process or thread in its own namespace."""
    try:
        status = parse_pairs(read_kernel_file(f"{entry}/status", KERNEL_FILE_BYTES).decode("utf-8", "replace"))
        return int(status["NSpid"].split()[-1])
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _namespace(entry: Path) -> str:
    try:
        return os.readlink(entry / "ns/pid")
    except OSError:
        return ""
