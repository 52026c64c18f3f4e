"""How sure a hang is: by how many independent sources show that nothing moves, not by how many things were read from them.

What the kernel tells of one task (when it ran, what it is blocked in, what lies behind that call) is one source, however many
files it stands in; so is a stack with what was read of its lines. The count of steps, the io, the card, a peer and the counts
of collectives are each another. Whatever is lacking takes some of the confidence away.
"""

from collections.abc import Iterable

from perfwatch.verdict import Evidence, Level

# Witnesses that share a source; any other is a source of its own. ``state`` too: that a task is stopped is no silence, but a fact;
# and ``gil``: it is the other threads that ask for it in vain.
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
# By the number of sources. One alone is below what is called sure; with two or more the gauntlet's hangs were right more often
# than this says, and each further one leaves less doubt.
ONE_SOURCE = 0.55
CONFIDENCE = (0.0, ONE_SOURCE, 0.94, 0.98, 0.985, 0.99)
# Of one task the kernel remembers when it ran and knows what it waits for: each errs for reasons of its own (a look in the
# midst of a short wait, a clock that is not kept up while a thread runs), so both are worth more than either.
BOTH_OF_A_TASK = frozenset({"thread", "syscall"})
TASK_ALONE, TASK_AND_ONE = 0.9, 0.96

# At most, where somebody whom nothing rules out may yet let the one that waits go on: another thread or process that moves or rests,
# a handler of a signal, whoever holds a lock, or opens a FIFO, from outside of the job. It has not come within the whole patience.
MAY_COME = Level.MEDIUM


def certainty_of_a_hang(evidence: Iterable[Evidence]) -> float:
    """The confidence that these pieces together allow; fewer of them never allow more."""
    witnesses = {one.witness for one in evidence}
    sources = len({SOURCE_OF.get(witness, witness) for witness in witnesses})
    sure = CONFIDENCE[min(sources, len(CONFIDENCE) - 1)]
    if witnesses >= BOTH_OF_A_TASK:
        return max(sure, TASK_ALONE if sources == 1 else TASK_AND_ONE)
    return sure
