"""A thread that sleeps a little, looks at a file, and sleeps again: told by the source line and the loop around it."""

from perfwatch.probes import readings as r
from perfwatch.triage.frames import user_frame
from perfwatch.triage.history import History
from perfwatch.triage.node import Node

# Names of calls that look at a file without reading it.
FILE_TESTS = frozenset(
    "exists isfile isdir is_file is_dir stat lstat access listdir glob iglob scandir getsize getmtime".split()
)
LOCK_CALLS = frozenset("flock lockf acquire O_EXCL locked".split())


def source_of(history: History, node: Node) -> r.SourceLine | None:
    """The text of the line that the thread is at, where it was read."""
    frame = user_frame(node.stack) if node.stack else None
    if frame is None:
        return None
    seen = history.latest(r.SourceLine, frame.file, frame.line)
    return seen.reading if seen else None


def polls_a_file(history: History, node: Node) -> bool:
    """Whether the loop around the sleeping line tests for a file or a lock file."""
    source = source_of(history, node)
    if source is None:
        return False
    names = {call.rsplit(".", 1)[-1] for call in source.loop_calls}
    return bool(names & FILE_TESTS) or bool(names & LOCK_CALLS and "sleep" in names)


def path_of(history: History, node: Node) -> str:
    """The path that it waits for, from the blocked call or from strings in the frame's locals; "" when unknown."""
    if node.wait is not None and node.wait.path:
        return node.wait.path
    for seen in reversed(history.series(r.Stack, node.pid, node.tid)):
        paths = [text for text in seen.reading.texts if "/" in text]
        if paths:
            return paths[0]
    return ""


def is_fifo(history: History, node: Node, path: str) -> bool:
    """Whether a descriptor reading says that this path is a FIFO."""
    return any(
        seen.reading.kind == "fifo"
        for key in history.entities(r.Descriptor)
        if key[0] == node.pid and (seen := history.latest(r.Descriptor, *key)) and seen.reading.target == path
    )
