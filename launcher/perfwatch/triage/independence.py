"""How sure a hang is: by the number of independent sources that show that nothing moves, not by the number of readings.

What the kernel says of one task (when it ran, what it is blocked in, what is behind that call) is one source, whatever files it
stands in. A stack with its lines of source is another one, as are the count of steps, I/O, the GPU, a peer and the calls of a
collective.
"""

from collections.abc import Iterable

from perfwatch.verdict import Evidence, Level

# Witnesses that share a source; any other is a source of its own. ``state`` too (a stopped task is no silence, but a fact), and
# ``gil``: the other threads request it and do not get it.
SOURCE_OF = {
    "thread": "task",
    "syscall": "task",
    "schedstat": "task",
    "pipe": "task",
    "file": "task",
    "source": "stack",
    "gpm": "card",
    "nvml": "card",
}
# When a task last ran and what it is blocked in err for different reasons (a sample in the midst of a short wait, a clock that is
# not updated while a thread runs): together they suffice.
BOTH_OF_A_TASK = frozenset({"thread", "syscall"})
ONE_SOURCE = Level.LOW  # a single source makes a suspicion
# At most, if something that is not ruled out may still release the wait: another thread or process that runs or sleeps, a signal
# handler, a lock holder or a writer of a FIFO outside of the job. It has not done so within the whole hang timeout.
MAY_COME = Level.MEDIUM


def certainty_of_a_hang(evidence: Iterable[Evidence]) -> float:
    """The confidence that these pieces together allow; fewer of them never allow more."""
    witnesses = {one.witness for one in evidence}
    sources = {SOURCE_OF.get(witness, witness) for witness in witnesses}
    if len(sources) > 1 or witnesses >= BOTH_OF_A_TASK:
        return Level.CERTAIN
    return ONE_SOURCE if sources else 0.0
