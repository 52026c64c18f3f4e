"""What becomes of a signal that reaches the launcher: passed on to the job, taken as a trigger, or neither.

The table of README.md here, in code. ``decide`` is pure; ``catchers`` reads which processes of the job have a handler.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perfwatch.processes.linux import REALTIME_MINIMUM, Arrival

VERDICT_SIGNAL = REALTIME_MINIMUM + 8
TRIGGERS = {
    VERDICT_SIGNAL: "verdict",
    REALTIME_MINIMUM + 9: "timeline",
    REALTIME_MINIMUM + 10: "kernels",
}
SHARED_TRIGGERS = {signal.SIGUSR1: "timeline", signal.SIGUSR2: "kernels"}  # schedulers and frameworks use them too
# What the kernel sends, by who gets it. A terminal's keys, stops and new sizes go to a whole process group: the job has them.
_OF_THE_GROUP = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH}
)
# A terminal that hangs up tells the session leader alone. Any other process gets these two as a member of a group: when the
# leader ends, or when the group is orphaned while a member is stopped.
_OF_THE_LEADER = frozenset({signal.SIGHUP, signal.SIGCONT})
_OF_OUR_OWN_DOING = frozenset(
    {signal.SIGCHLD, signal.SIGPIPE, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
    | {signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT}
)


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
    leads_session: bool = False,
) -> Decision:
    """What to do with one signal.

    Args:
        arrival: the signal.
        child: the process that we started.
        reached_group: whether the signal went to our whole process group, and so to the child already (``kill %1``,
            a terminal, ``systemctl stop``).
        catching: the topmost processes of the job that have a handler for this number.
        trigger_signals: "all", or "rt" to leave SIGUSR1 and SIGUSR2 to the job.
        leads_session: True if we are the leader of our session, which a terminal tells that it hangs up.
    """
    if arrival.number in TRIGGERS:
        return Decision(trigger=TRIGGERS[arrival.number])
    if reached_group() or not may_be_for_the_job(arrival, leads_session):
        return Decision()
    shared = SHARED_TRIGGERS.get(signal.Signals(arrival.number)) if arrival.number < REALTIME_MINIMUM else None
    if shared is None:
        return Decision(forward_to=(child,))
    handlers = catching(arrival.number)
    if handlers:
        return Decision(forward_to=(child,) if child in handlers else handlers)
    # No process catches it: passed on, it would kill the job.
    return Decision(trigger=shared if trigger_signals == "all" else None)


def may_be_for_the_job(arrival: Arrival, leads_session: bool) -> bool:
    """True if without us the job would have got this signal, which it has not got by itself.

    Of another process any signal may be. Of the kernel those are that it sends to one process: a hang-up, and a timer or an
    owner of a file that our parent has set before it became us.
    """
    if not arrival.from_kernel:
        return True
    if arrival.number in _OF_THE_LEADER:
        return leads_session
    return arrival.number not in _OF_THE_GROUP | _OF_OUR_OWN_DOING


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
    found = _status(entry, b"PPid:")
    return int(found) if found is not None else None


def _catches(entry: Path, number: int) -> bool:
    found = _status(entry, b"SigCgt:")
    return found is not None and bool(int(found, 16) >> (number - 1) & 1)


def _status(entry: Path, name: bytes) -> bytes | None:
    """One value of status, the file that waits for no lock of the process: another user's must not hold up a signal for the job."""
    try:
        for line in (entry / "status").read_bytes().splitlines():
            if line.startswith(name):
                return line.split()[1]
    except OSError:
        pass  # it ended during the check
    return None
