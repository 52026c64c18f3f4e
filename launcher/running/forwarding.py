"""What becomes of a signal that reaches the launcher: passed on to the job, taken as a trigger, or neither.

The table of the README in code. ``decide`` is pure; ``catchers`` reads which processes of the job have a handler.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perfwatch.linux import REALTIME_MINIMUM, Arrival
from perfwatch.probes.stat import stat_fields

VERDICT_SIGNAL = REALTIME_MINIMUM + 8
TRIGGERS = {
    VERDICT_SIGNAL: "verdict",
    REALTIME_MINIMUM + 9: "timeline",
    REALTIME_MINIMUM + 10: "kernels",
}
SHARED_TRIGGERS = {signal.SIGUSR1: "timeline", signal.SIGUSR2: "kernels"}  # schedulers and frameworks use them too


@dataclass(frozen=True)
class Decision:
    """``forward_to``: processes that get the signal, once each. ``trigger``: what the watcher is asked for."""

    forward_to: tuple[int, ...] = ()
    trigger: str | None = None


def decide(
    arrival: Arrival,
    child: int,
    reached_group: Callable[[], bool],
    catching: Callable[[int], tuple[int, ...]],
    trigger_signals: str = "all",
) -> Decision:
    """What to do with one signal.

    Args:
        arrival: the signal.
        child: the process that we started.
        reached_group: whether the signal went to our whole process group, and so to the child already (``kill %1``,
            a terminal, ``systemctl stop``).
        catching: the topmost processes of the job that have a handler for this number.
        trigger_signals: "all", or "rt" to leave SIGUSR1 and SIGUSR2 to the job.
    """
    if arrival.number in TRIGGERS:
        return Decision(trigger=TRIGGERS[arrival.number])
    if arrival.from_kernel or reached_group():
        return Decision()
    shared = SHARED_TRIGGERS.get(signal.Signals(arrival.number)) if arrival.number < REALTIME_MINIMUM else None
    if shared is None:
        return Decision(forward_to=(child,))
    handlers = catching(arrival.number)
    if handlers:
        return Decision(forward_to=(child,) if child in handlers else handlers)
    # Nobody catches it: passed on, it would kill the job.
    return Decision(trigger=shared if trigger_signals == "all" else None)


def catchers(root: int, number: int, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """The processes of the tree under ``root`` that catch this signal and have no catching ancestor in it.

    A forked DataLoader worker inherits its rank's handler: only the rank is meant.
    """
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if _catches(proc / str(pid), number):
            found.append(pid)
        else:
            waiting.extend(children.get(pid, ()))
    return tuple(found)


def _parent(entry: Path) -> int | None:
    try:
        return int(stat_fields(entry)[1])
    except (OSError, IndexError):
        return None  # it ended while we looked


def _catches(entry: Path, number: int) -> bool:
    try:
        for line in (entry / "status").read_bytes().splitlines():
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except OSError:
        pass  # it ended while we looked
    return False
