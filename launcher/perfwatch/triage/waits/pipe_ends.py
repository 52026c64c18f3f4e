"""Who is at the other end of a pipe that a thread waits at, and whether somebody may yet come to it."""

from perfwatch.triage.case import Case
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.node import End


def other_end(case: Case, end: End, *, opens: bool, writes: bool) -> tuple[str, bool]:
    """In words, and whether somebody may come there: who holds it, opens a FIFO by its name, or cannot be seen.

    A pipe without a name that nobody is seen to hold, not even the thread's own process, has somebody at its other end all the same:
    else the read had met the end of the file, and the write an error (pipe(7)). That one is in another pid namespace, or another
    user's.
    """
    pipe, far = end.descriptor, "read" if writes else "write"
    if end.others:
        told = f"the {'reader' if writes else 'writer'} is {', '.join(f'pid {pid}' for pid in end.others[:3])}"
        left = [m.pid for m in case.job.children(end.node.pid) if not m.alive] if not writes else []
        told += f", and child {left[-1]}, which may have started it, has ended" if left else ""
        return told, not (writes and outside.asks_elsewhere(case, end))
    known = set(pipe.readers if writes else pipe.writers) if pipe is not None else set()
    if known - {end.node.pid} and not writes:
        return "those who hold its write end wait for this reader themselves", False
    if opens or pipe is None or pipe.kind == "fifo":
        return f"no other process holds its {far} end", True
    if end.node.pid in known:
        return f"no other process holds its {far} end", False
    return f"who holds its {far} end cannot be seen from here", True
