"""Python threads that were seen and have ended: a thread that needs their result is blocked forever."""

from collections.abc import Iterable

import msgspec

from perfwatch.triage.history import History
from perfwatch.triage.questions import python_threads
from perfwatch_probes import readings as r
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable


def departed(history: History, filesystem: Filesystem, pids: Iterable[int]) -> list[r.Thread]:
    """The last word about each thread whose stack was once read and that /proc/PID/task does not list any more: state X."""
    found = []
    for pid in pids:
        try:
            tasks = filesystem.tasks(pid)
        except Unavailable:  # the whole process is gone: that is told of it
            continue
        for tid in set(python_threads(history, pid)).difference(tasks, (0, pid)):
            seen, stack = history.latest(r.Thread, pid, tid), history.latest(r.Stack, pid, tid)
            named = stack.reading.thread if stack is not None else ""
            last = (
                seen.reading if seen is not None else r.Thread(pid=pid, tid=tid, name=named, state="X", cpu_seconds=0.0)
            )
            found.append(msgspec.structs.replace(last, state="X", wait=None, wchan=None, ran_ago_seconds=None))
    return found
