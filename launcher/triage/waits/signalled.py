"""Waits that the handler of a signal may end. Python runs handlers in the main thread, also while that waits for a condition.

Source: the documentation of Python's ``signal`` and ``threading`` (from 3.2 on a wait can be interrupted), and SigCgt in
/proc/PID/status (proc(5)).
"""

import signal

from perfwatch.probes.readings import ProcessUsage
from perfwatch.triage.case import Case
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.threads import A_CONDITION, awaited

# By which programs tell each other something, and timers; others end a program, or are caught to say how it failed.
TELLING = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGCONT,
    signal.SIGIO,
    signal.SIGHUP,
)


def may_signal(case: Case, node: Node) -> tuple[str, ...]:
    """Names of the signals whose handlers may bring about what a main thread waits for; none for any other wait or thread."""
    if node.tid != node.pid or awaited(node) != A_CONDITION:
        return ()
    usage = case.history.latest(ProcessUsage, node.pid)
    caught = usage.reading.signals_caught if usage is not None else None
    return tuple(one.name for one in TELLING if caught is not None and caught >> (one - 1) & 1)
