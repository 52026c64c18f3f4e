"""Who may own a lock of Python's that another thread waits for, as far as the text of the lines tells."""

from perfwatch.triage.history import History
from perfwatch.triage.shares.own_work import takes_a_lock
from perfwatch.triage.waits.asked_for import A_LOCK, awaited
from perfwatch.triage.waits.heartbeats import waits_forever
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import line_of, lock_taken, names
from perfwatch.triage.words.frames import user_frames
from perfwatch_probes.readings import Frame

READS = ("recv", "read", "poll")


def may_own(history: History, node: Node, others: list[Node]) -> tuple[list[Node], bool]:
    """Of the threads beside one that waits for a lock, those that may own it; True if a reader that is left out may, all the same.

    A thread within a ``with`` of that name does. Else, where another thread stopped at a lock, those
    two explain each other, and a listener that waits for its next message beside them does not; it holds nothing at all where each of
    its lines was read and is in no ``with``.
    """
    lock = lock_taken(line_of(history, node.frame))
    owners = [other for other in others if holds(history, other, lock)] if lock else []
    rivals = [one for one in others if waits_forever(one) and awaited(one) == A_LOCK]
    if owners or not [one for one in rivals if not lock or lock_taken(line_of(history, one.frame)) != lock]:
        return owners or others, False  # who waits for the same lock explains nothing
    readers = [other for other in others if other.wait is not None and other.wait.kind in READS and other.state == "S"]
    return [other for other in others if other not in readers], any(not free(history, one) for one in readers)


def holds(history: History, node: Node, lock: str) -> bool:
    """Whether a thread is inside of a ``with`` of a lock of that name, beyond the line that takes it."""
    if node.stack is None or (takes_a_lock(history, node.stack) and lock_taken(line_of(history, node.frame)) == lock):
        return False
    around = (line_of(history, frame) for frame in user_frames(node.stack))
    return any(one is not None and lock in names(one.within) for one in around)


def acquires(history: History, node: Node, lock: str) -> bool:
    """Whether a thread stands in a loop that takes a lock of that name by ``acquire``, and not at that call: it may have it now."""
    if node.stack is None or takes_a_lock(history, node.stack):
        return False
    around = (line_of(history, frame) for frame in user_frames(node.stack))
    called = (call.rpartition(".") for one in around if one is not None for call in one.loop_calls)
    return any(name == "acquire" and of.rpartition(".")[2] == lock for of, _, name in called)


def takes_again(history: History, node: Node) -> Frame | None:
    """Where a thread took the lock that it waits for, if it is within a ``with`` of that name in a caller of the same class or file.

    A lock that is no ``RLock`` is not given twice, to nobody.
    """
    lock = lock_taken(line_of(history, node.frame))
    if not lock or node.stack is None or node.frame is None:
        return None
    if "mp_lock" not in node.inner and not takes_a_lock(history, node.stack):
        return None
    frames, mine = user_frames(node.stack), (node.frame.file, node.frame.function.rpartition(".")[0])
    for frame in frames[1:]:
        line = line_of(history, frame)
        if line is not None and lock in names(line.within) and (frame.file, frame.function.rpartition(".")[0]) == mine:
            return frame
    return None


def free(history: History, node: Node) -> bool:
    """Whether all lines of the program's own on its stack were read, and none of them is in a ``with``."""
    lines = [line_of(history, frame) for frame in user_frames(node.stack)] if node.stack is not None else []
    return bool(lines) and all(line is not None and not line.within for line in lines)
