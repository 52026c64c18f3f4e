"""Waits that a library's frames or handles name: its event loop, Ray's actors, torch's remote calls, asynchronous collectives.

An event loop that a library keeps for its visitors (a server, a notebook's kernel) rests without any, and that is no hang. In a loop that
the program runs itself (``asyncio.run(main())``) its own coroutine waits for something, and so does a training that calls a library
which runs a loop for it alone (a client's blocking call).

An actor of Ray between two calls keeps nothing waiting. For which actor a ``ray.get`` waits is not known: while one that is in a call or a
task moves, it is that one.

gloo waits for a collective for as long as it takes, and for a send or receive until its timeout, which is half an hour.
"""

import re
from collections.abc import Iterator
from itertools import takewhile

from perfwatch.triage.history import History, open_file
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.roles.job import Job, training_thread
from perfwatch.triage.roles.placement import RUNS
from perfwatch.triage.waits.node import (
    ENDLESS_SECONDS,
    EVENT_LOOP,
    NATIVE_WAIT,
    End,
    Found,
    Node,
    has_timeout,
    led_to,
    node_of,
    waits_forever,
)
from perfwatch.triage.waits.polling import waits_for_work
from perfwatch.triage.waits.threads import A_REMOTE_CALL, other_threads, worked_for
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import any_tag, installed_as, is_user, own_frames, package_of, tags, tags_of
from perfwatch_probes import readings as r

LOOP = re.compile(r"/(asyncio/\w+|selectors)\.py$|-packages/uvloop/")
# They run a coroutine that the program hands them, and keep no visitors of their own.
RUN_FOR_OTHERS = frozenset({"anyio", "uvloop", "nest_asyncio"})
STEPS = ("backward", "optimizer")  # tags of a training; a server runs models forward as well
RAYLET = "raylet"  # the program of the process above all actors and tasks of a machine
REMOTE = "remote"  # kind of the edge from one that waits for what an actor or a task makes
SHOWN = 3
ITS_NEXT_CALL = "its next call"  # detail of an end that is such an actor, of which it is not known what would call it
CALLED, CALLS = "rpc_call", "rpc_wait"  # tags of a thread that executes a call, and of one that waits for an answer
ANSWER = "the answer to a remote call"
ENDS = "rpc_shutdown"  # tag of that function
TOGETHER_SECONDS = 0.5  # when each last ran is read to a few milliseconds
REDUCTION, WORK, EXCHANGE = "backward", "work", "exchange"


def keeper_of(node: Node) -> str | None:
    """The library whose event loop a thread waits in; None where it waits elsewhere, or a program in files of its own runs the loop.

    A server that is installed, and is the program itself, has visitors, too.
    """
    if node.stack is None or node.wait is None or node.wait.kind != "poll":
        return None
    frames = own_frames(node.stack)
    loop = list(takewhile(lambda frame: LOOP.search(frame.file), frames))
    runners = (frame for frame in frames[len(loop) :] if package_of(frame) not in RUN_FOR_OTHERS)
    first = next(runners, None) if any(map(_turns, loop)) else None
    return installed_as(first) if first is not None else None


def _at_own_code(history: History, job: Job, node: Node) -> Found | None:
    """The threads beside one that are at something of the program's own; None where there are none."""
    others = worked_for(other_threads(history, job, node))
    own = tuple(other for other in others if other.stack is not None and any(map(is_user, own_frames(other.stack))))
    return led_to(own) if own else None


def of_a_library(history: History, job: Job, node: Node) -> Found | None:
    """Where a main thread's wait in such a loop leads: to the threads that are at something of the program's own, or nowhere."""
    library = keeper_of(node) if node.motion.frozen and node.tid == node.pid else None
    if library is None or _waits_for_the_training(history, node):
        return None
    told = f"visitors, in an event loop of {library}: it is idle and has no request"
    return _at_own_code(history, job, node) or (told, (), End("idle", node))


def _turns(frame: r.Frame) -> bool:
    return "/asyncio/" in frame.file or package_of(frame) == "uvloop"


def _waits_for_the_training(history: History, node: Node) -> bool:
    """True if a thread that trained outside of any loop is in one now that nothing can come to: it does not listen, nor ask to type."""
    stacks = (one.reading for one in reversed(history.series(r.Stack, node.pid, node.tid)))
    newest = next((one for one in stacks if any_tag(tags(one), *STEPS) and "import" not in tags(one)), None)
    if newest is None or any(map(_turns, own_frames(newest))) or node.wait is None or node.wait.fd is None:
        return False
    loop = open_file(history, node.pid, node.tid, node.wait.fd)
    if loop is None or loop.reading.kind != "epoll":
        return False  # it was not looked at yet
    files = [file.reading for fd in loop.reading.watched if (file := open_file(history, node.pid, node.tid, fd))]
    return not any(one.kind == "tty" or (one.socket is not None and one.socket.state == "LISTEN") for one in files)


def between_calls(node: Node) -> bool:
    """True if a main thread waits in the loop that takes calls; in a call the program's own frames are inside of it."""
    inner = node.stack.frames[0] if node.stack is not None and node.stack.frames else None
    return node.tid == node.pid and inner is not None and "between_calls" in tags_of(inner.function, inner.file)


def caller(history: History, job: Job, node: Node) -> Found | None:
    """Where the wait of a rank for its next call leads: to a thread of its own that is at something, or to its driver."""
    if node.role != "rank" or not node.motion.frozen or not between_calls(node):
        return None
    if (own := _at_own_code(history, job, node)) is not None:
        return own
    # The nearest program that is neither Ray's own nor a rank.
    above = job.lineage(job.members[node.pid].process.parent_pid)
    programs = (one for one in above if one.process.python and one.role not in ("service", "rank") and one.alive)
    if (driver := next(programs, None)) is not None:
        return f"pid {driver.pid} to call it", (node_of(history, job, driver.pid),), None
    return ITS_NEXT_CALL, (), End(NATIVE_WAIT, node, detail=ITS_NEXT_CALL)


def makers(history: History, job: Job, node: Node) -> Found | None:
    """Where a wait for what others make leads: to the actors and tasks that are in a call now; of those that move to them alone.

    Calls that wait for other ranks are left out. What the calls of an actor with an event loop wait for is on no stack.
    """
    if "remote_get" not in node.inner or not node.motion.frozen:
        return None
    others = [pid for pid in serving(job) if pid != node.pid]
    keys = [key for pid in others for key in history.of(r.Stack, pid) if key[1] != pid]
    stacks = (history.latest(r.Stack, *key) for key in keys)
    if any(one is not None and EVENT_LOOP in tags(one.reading) for one in stacks):
        return None
    calls = [one for pid in others for one in _executing(history, job, pid)]
    at_work = [one for one in calls if not any_tag(one.tags, "collective", "rendezvous")]
    found = [one for one in at_work if one.motion.frozen is False] or at_work
    if not found:
        return None
    pids = [str(pid) for pid in dict.fromkeys(one.pid for one in found)]
    return f"pid {' or '.join(pids[:SHOWN])} to return from a call", tuple(found), None


def serving(job: Job) -> tuple[int, ...]:
    """The living processes of a job in which Ray runs actors and tasks, not Ray's own."""
    programs = {pid: member.process.command for pid, member in job.members.items()}
    raylets = {pid for pid, command in programs.items() if command and command[0].rpartition("/")[2] == RAYLET}
    python = (one for one in job.members.values() if one.alive and one.process.python and one.role != "service")
    return tuple(one.pid for one in python if one.process.parent_pid in raylets)


def _executing(history: History, job: Job, pid: int) -> Iterator[Node]:
    """The threads of an actor or a task that are in a call: the main one, or those that an actor of several threads has for it."""
    main = node_of(history, job, pid)
    if main.stack is not None and main.stack.frames and not between_calls(main):
        yield main
        return
    for tid in python_threads(history, pid):
        one = node_of(history, job, pid, tid)
        frames = own_frames(one.stack) if one.stack is not None and tid != pid else ()
        if any(map(is_user, frames)) and RUNS not in one.tags:  # a training that Ray was given is no call
            yield one


def not_yet_done(history: History, job: Job, node: Node) -> Found | None:
    """The ranks that have not come to it, which are at their work or hang; None where all are there, and it should end."""
    if ENDS not in node.inner:
        return None
    others = (rank for rank in job.ranks if rank.alive and rank.pid != node.pid)
    peers = [node_of(history, job, rank.pid, training_thread(history, rank)) for rank in others]
    absent = tuple(peer for peer in peers if ENDS not in peer.inner)
    if not absent:
        return None
    names = ", ".join(f"rank {peer.rank}" if peer.rank is not None else f"pid {peer.pid}" for peer in absent[:SHOWN])
    more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
    return f"{names}{more} to be done with it", absent, None


def remote_calls(history: History, job: Job, node: Node) -> Found | None:
    """Of a rank that waits for the answer to a call: the threads that execute one now, of those that move to them alone.

    For which of them is not seen; but a call whose answer is waited for at once has run since. The future of a call looks like
    that of a collective, but where others only serve.
    """
    asks = CALLS in node.inner or (waits_for_work(history, node) and _others_serve(history, job, node))
    if not asks or not node.motion.frozen:
        return None
    threads = (node_of(history, job, rank.pid, tid) for rank in job.ranks for tid in python_threads(history, rank.pid))
    calls = [one for one in threads if CALLED in one.tags and (one.pid, one.tid) != (node.pid, node.tid)]
    calls = [one for one in calls if CALLS not in node.inner or not _ran_before(one, node)]
    found = [one for one in calls if one.motion.frozen is False] or calls
    if not found and CALLS not in node.inner:
        return None
    end = None if found else End(NATIVE_WAIT, node, detail=ANSWER)
    return ANSWER if end else A_REMOTE_CALL, tuple(found), end


def _ran_before(one: Node, node: Node) -> bool:
    """True if a thread has not run since another one fell asleep, by what the kernel remembers of both."""
    ages = [seen.thread.ran_ago_seconds if seen.thread is not None else None for seen in (one, node)]
    if ages[0] is None or ages[1] is None:
        return False
    return one.thread_at - ages[0] < node.thread_at - ages[1] - TOGETHER_SECONDS


def may_ask(history: History, job: Job, node: Node) -> bool:
    """True if a rank that waits for what looks like a lock may wait for an answer: the text of its line would tell."""
    return line_of(history, node.frame) is None and _others_serve(history, job, node)


def _others_serve(history: History, job: Job, node: Node) -> bool:
    return any(ENDS in node_of(history, job, rank.pid).inner for rank in job.ranks if rank.pid != node.pid)


def of_peers(history: History, job: Job, node: Node) -> tuple[str, str] | None:
    """What of theirs a rank waits for, in words, and which of the three it is; None where it is none of them."""
    if max(len(job.ranks), job.world_size or 1) < 2 or node.motion.frozen is False:  # on this host or on others
        return None
    if waits_forever(node):
        if "backward" in node.inner:
            return "the gradients' reduction", REDUCTION
        return ("an asynchronous collective", WORK) if waits_for_work(history, node) else None
    long = has_timeout(node) and node.wait is not None and (node.wait.remaining_seconds or 0.0) > ENDLESS_SECONDS
    return ("a send or receive", EXCHANGE) if long and waits_for_work(history, node) else None
