"""Event loops that a library keeps for its visitors (a server, a notebook's kernel): without any they rest, and that is no hang.

A loop that the program runs itself (``asyncio.run(main())``) is another matter: its own coroutine waits for something there.
"""

import re

from perfwatch.triage import threads
from perfwatch.triage.frames import installed_as, is_user, own_frames, package_of
from perfwatch.triage.history import History
from perfwatch.triage.job import Job
from perfwatch.triage.node import End, Node
from perfwatch.triage.workers import Found

LOOP = re.compile(r"/(asyncio/\w+|selectors)\.py$|-packages/uvloop/")
# They run a coroutine that the program hands them, and keep no visitors of their own.
RUN_FOR_OTHERS = frozenset({"anyio", "uvloop", "nest_asyncio"})


def keeper_of(node: Node) -> str | None:
    """The library whose event loop a thread waits in; None where it waits elsewhere, or a program in files of its own runs the loop.

    A server that is installed, and is the program itself, has visitors, too.
    """
    if node.stack is None or node.wait is None or node.wait.kind != "poll":
        return None
    frames = own_frames(node.stack)
    outside = next((number for number, frame in enumerate(frames) if not LOOP.search(frame.file)), len(frames))
    if not any("/asyncio/" in frame.file or package_of(frame) == "uvloop" for frame in frames[:outside]):
        return None
    runners = (frame for frame in frames[outside:] if package_of(frame) not in RUN_FOR_OTHERS)
    first = next(runners, None)
    return installed_as(first) if first is not None else None


def of_a_library(history: History, job: Job, node: Node) -> Found | None:
    """Where a main thread's wait in such a loop leads: to the threads that are at something of the program's own, or nowhere."""
    library = keeper_of(node) if node.motion.frozen and node.tid == node.pid else None
    if library is None:
        return None
    others = threads.worked_for(history, threads.other_threads(history, job, node))
    own = tuple(other for other in others if other.stack is not None and any(map(is_user, own_frames(other.stack))))
    if own:
        return f"thread {own[0].name or own[0].tid}", own, None
    return f"visitors, in an event loop of {library}: it is at rest, and nothing is asked of it", (), End("idle", node)
