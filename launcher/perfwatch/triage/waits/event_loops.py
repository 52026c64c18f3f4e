"""Event loops that a library keeps for its visitors (a server, a notebook's kernel): without any they rest, and that is no hang.

A loop that the program runs itself (``asyncio.run(main())``) is another matter: its own coroutine waits for something there. So
does a training that calls a library which runs a loop for it alone (a client's blocking call, a judge of answers).
"""

import re

from perfwatch.triage.history import History
from perfwatch.triage.present import open_file
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits import threads
from perfwatch.triage.waits.node import End, Found, Node
from perfwatch.triage.words.frames import any_tag, installed_as, is_user, own_frames, package_of, tags
from perfwatch_probes import readings as r

LOOP = re.compile(r"/(asyncio/\w+|selectors)\.py$|-packages/uvloop/")
# They run a coroutine that the program hands them, and keep no visitors of their own.
RUN_FOR_OTHERS = frozenset({"anyio", "uvloop", "nest_asyncio"})
STEPS = ("backward", "optimizer")  # tags of a training; a server runs models forward as well


def keeper_of(node: Node) -> str | None:
    """The library whose event loop a thread waits in; None where it waits elsewhere, or a program in files of its own runs the loop.

    A server that is installed, and is the program itself, has visitors, too.
    """
    if node.stack is None or node.wait is None or node.wait.kind != "poll":
        return None
    frames = own_frames(node.stack)
    outside = next((number for number, frame in enumerate(frames) if not LOOP.search(frame.file)), len(frames))
    if not any(map(_turns, frames[:outside])):
        return None
    runners = (frame for frame in frames[outside:] if package_of(frame) not in RUN_FOR_OTHERS)
    first = next(runners, None)
    return installed_as(first) if first is not None else None


def of_a_library(history: History, job: Job, node: Node) -> Found | None:
    """Where a main thread's wait in such a loop leads: to the threads that are at something of the program's own, or nowhere."""
    library = keeper_of(node) if node.motion.frozen and node.tid == node.pid else None
    if library is None or _waits_for_the_training(history, node):
        return None
    others = threads.worked_for(history, threads.other_threads(history, job, node))
    own = tuple(other for other in others if other.stack is not None and any(map(is_user, own_frames(other.stack))))
    if own:
        return f"thread {own[0].name or own[0].tid}", own, None
    return f"visitors, in an event loop of {library}: it is at rest, and nothing is asked of it", (), End("idle", node)


def _turns(frame: r.Frame) -> bool:
    return "/asyncio/" in frame.file or package_of(frame) == "uvloop"


def _waits_for_the_training(history: History, node: Node) -> bool:
    """Whether a thread that trained outside of any loop is in one now that nobody can come to: it does not listen, nor ask to type."""
    stacks = (one.reading for one in reversed(history.series(r.Stack, node.pid, node.tid)))
    newest = next((one for one in stacks if any_tag(tags(one), *STEPS) and "import" not in tags(one)), None)
    if newest is None or any(map(_turns, own_frames(newest))) or node.wait is None or node.wait.fd is None:
        return False
    loop = open_file(history, node.pid, node.tid, node.wait.fd)
    if loop is None or loop.reading.kind != "epoll":
        return False  # it was not looked at yet
    files = [file.reading for fd in loop.reading.watched if (file := open_file(history, node.pid, node.tid, fd))]
    return not any(one.kind == "tty" or (one.socket is not None and one.socket.state == "LISTEN") for one in files)
