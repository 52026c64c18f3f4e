"""Pipes and terminals that block a thread: a full one that is not read, an empty one that is not written to, a question on stdin.

A program that was started with a pipe for its stderr, of which its parent reads stdout only, stops after some 64 KiB of warnings. A
worker of a loader or a pool that does not take what it is sent is ``stuck_worker``.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from shlex import quote

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.memory import quiet
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.present import open_file
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.edges import STREAMS
from perfwatch.triage.waits.node import NATIVE_WAIT, STDIN, End, Node, culprit, node_of, silence, waited_on
from perfwatch.triage.waits.outside import asks_elsewhere
from perfwatch.triage.waits.threads import OTHERS_MOVE, other_threads, worked_for
from perfwatch.triage.waits.workers import idle
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import show, user_frame
from perfwatch.verdict import Finding, Link, Outcome, doing
from perfwatch_probes.readings import Descriptor, Stack, Thread

BLOCKED_PIPE = Cause("blocked_pipe", "hung", "user_code", (Thread, Descriptor))

ASKED = frozenset({"child", "join_process", "supervised"})  # so has any other end in a child: ``blocked_child``
OUTPUTS = (1, 2)
ELSEWHERE = ("dead", "stopped", "traced", "cycle")  # ends that say themselves why there is no reader
GUESSED = 0.7  # the reader may go on: other threads of it move, or what it waits for could not be seen
HELD = "Ctrl-S was typed there, or what shows it (tmux, screen, ssh) has stopped"
QUESTIONS = frozenset({"input", "getpass", "getpass.getpass", "click.confirm", "click.prompt"})


@dataclass(frozen=True)
class Undrained:
    """Who writes, who should read, and the pipe between them."""

    writer: Node
    reader: Node
    pipe: Descriptor
    reader_waits_for: str

    def ended(self, case: Case, chain: Chain) -> Chain:
        """The same chain, with the writer for its end."""
        end = End(
            "pipe_full",
            self.writer,
            silence(case.history, self.writer),
            descriptor=self.pipe,
            others=(self.reader.pid,),
        )
        return replace(chain, ends=(end,))


def blocked_pipe(case: Case) -> Outcome:
    """Fires on a chain that ends in a pipe."""
    for chain in case.still_chains:
        if (found := not_read(case, chain)) is not None:
            return _not_read(case, chain, found)
        end = chain.end
        if end.kind not in ("pipe_full", "pipe_empty") or not end.still or "child" in chain.through:
            continue
        if "pool" in chain.through and idle(end.node):
            continue  # a worker of a pool that waits for its next task
        asks = end.kind == "pipe_empty" and asks_once(case, chain)
        if not asks and wakes_soon(case, end):
            continue
        return held(case, chain) or _of_pipe(case, chain, asks)
    return None


def _of_pipe(case: Case, chain: Chain, asks: bool) -> Finding:
    """Of a pipe that stays as it is; ``asks``: the program put a question to the other end."""
    end, pipe, wait = chain.end, chain.end.descriptor, chain.end.node.wait
    opens = wait is not None and wait.kind == "open"
    writes = end.kind == "pipe_full" or (wait is not None and wait.writes)
    missing, may_come = other_end(case, end, opens=opens, writes=writes)
    name = pipe.target if pipe else end.detail
    stream = STREAMS.get(pipe.fd) if pipe else None
    which = f" ({stream})" if stream else ""
    return hung(
        case,
        BLOCKED_PIPE,
        chain,
        summary=f"{who(chain)} {'waits for an answer on' if asks else _does(opens, writes)} {name}{which}; {missing}",
        patience=STRUCTURAL_SECONDS if asks or not may_come else temporal(case),
        ceiling=MAY_COME if may_come else 1.0,
        evidence=(case.saw("pipe", name, "the other end", missing, "it is read" if writes else "it is written to"),),
        but={"slow_output": "not one write went through meanwhile"},
        next=(f"ls -l {quote(name)}" if name.startswith("/") else f"ls -l /proc/{end.node.pid}/fd",),
    )


def _not_read(case: Case, chain: Chain, found: Undrained) -> Finding:
    """Both ends of a full pipe, by name: the reader is blocked elsewhere, often on the writer itself."""
    writer, reader, end, pipe = found.writer, found.reader, chain.end, found.pipe
    ended, around = found.ended(case, chain), end.kind == "cycle"
    certain = around or outlasts(case, end) or (end.kind == "lock" and end.detail != OTHERS_MOVE)
    next: tuple[str, ...]
    if around:
        does = f"is blocked writing to its {STREAMS[pipe.fd]}, a full pipe that pid {reader.pid} does not read; "
        does += f"pid {reader.pid} at {show(reader.frame)} {doing(found.reader_waits_for)}"
        but = {"stuck_worker": f"pid {reader.pid} waits for pid {writer.pid}, which cannot go on"}
        output = f"{STREAMS[pipe.fd]}=subprocess.DEVNULL or a file, or a thread that reads it all the while"
        next = (f"where pid {writer.pid} is started: {output}",)
    else:
        name = " ".join(" ".join(case.job.members[reader.pid].process.command).split())[:80]
        does = f"writes into the full pipe {pipe.target}, which pid {reader.pid} ({name}) does not read: "
        does += f"it {doing(found.reader_waits_for)}"
        but = {
            "blocked_child": f"pid {writer.pid} waits for room in the pipe, not for an end",
            "slow_output": "not one write went through meanwhile",
        }
        next = (
            f"ps -o pid,stat,wchan:30,args -p {reader.pid}",
            "why does it not read? kill it, or write with a time limit",
        )
    at = f" at {show(reader.frame)}" if reader.frame is not None else ""
    blocked = f"it is blocked in {reader.wait.call if reader.wait else '?'}{at}, not on this pipe"
    holds = f"is full; pid {reader.pid} holds the reading end"
    both = [culprit(reader), *ended.culprits()]
    return hung(
        case,
        BLOCKED_PIPE,
        ended,
        summary=f"{who(ended)} {does}",
        patience=STRUCTURAL_SECONDS if certain else temporal(case),
        silent=None if around else min(silence(case.history, writer) or 0.0, end.silent_seconds or 0.0),
        ceiling=GUESSED if end.detail == OTHERS_MOVE or end.kind in ("unknown", NATIVE_WAIT) else 1.0,
        evidence=(case.saw("pipe", pipe.target, holds, blocked, "it is read"),),
        but=but,
        next=next,
        # The line that the training thread is at is where to fix it.
        culprits=both if not around or reader.pid == chain.start.pid else both[::-1],
    )


def _does(opens: bool, writes: bool) -> str:
    if opens:
        return f"waits to open for {'writing' if writes else 'reading'} the FIFO"
    return "writes into the full pipe" if writes else "reads the empty pipe"


def undrained(case: Case, chain: Chain) -> Undrained | None:
    """On a chain that comes back to itself: a program that writes to its stdout or stderr, and its parent, which waits for it.

    Not where the training thread itself waits for that program to end: both waits stand in ``blocked_child``.
    """
    for link in chain.links if chain.end.kind == "cycle" else ():
        member = case.job.members.get(link.pid)
        parent = member.process.parent_pid if member is not None else None
        # The way may begin at the writer as well: the one that should read comes after it then, and leads back to it.
        waiting = [one for one in chain.links if one.pid == parent and (one.depth == link.depth - 1 or not link.depth)]
        if not waiting or (waiting[-1].pid == chain.start.pid and chain.through & ASKED):
            continue
        found = _not_taken(case, link, waiting[-1])
        if found is None or found.pipe.fd not in OUTPUTS or found.pipe.kind != "pipe":
            continue
        if not worked_for(other_threads(case.history, case.job, found.reader)):  # one of those may be to read it
            return found
    return None


def _not_taken(case: Case, link: Link, following: Link) -> Undrained | None:
    """A thread that is blocked writing into a full pipe, and another one that could read it and does not."""
    writer = node_of(case.history, case.job, link.pid, link.tid)
    reader = node_of(case.history, case.job, following.pid, following.tid)
    pipe = blocked_writing(case, writer)
    if pipe is None or reader.pid not in pipe.readers or takes(case, reader, pipe):
        return None
    return Undrained(writer, reader, pipe, following.waits_for)


def blocked_writing(case: Case, node: Node) -> Descriptor | None:
    """The full pipe into which a thread is blocked writing."""
    writes = node.wait is not None and node.wait.kind == "write" and node.motion.frozen
    files = waited_on(case.history, node) if writes else []
    return next((file for file in files if file.kind in ("pipe", "fifo")), None)


def takes(case: Case, reader: Node, pipe: Descriptor) -> bool:
    """Whether what a thread is blocked in is that very pipe, alone or among others, or cannot be told."""
    wait = reader.wait
    if wait is None or not reader.motion.frozen:
        return True
    fds = [wait.fd] if wait.fd is not None else [one.fd for one in wait.polled]
    files = [open_file(case.history, reader.pid, reader.tid, fd) for fd in fds]
    return any(file is None or file.reading.kind == "epoll" or file.reading.inode == pipe.inode for file in files)


def unread(case: Case, chain: Chain) -> Undrained | None:
    """Of a chain through a full pipe to a reader that stands, or to what that waits for in turn: who writes, who does not read."""
    end = chain.end
    if end.kind in ELSEWHERE or not end.still or wakes_soon(case, end):
        return None
    for link, following in pairwise(chain.links):
        reader = case.job.members.get(following.pid)
        beyond = end.node.pid == following.pid or case.job.branch(end.node.pid, following.pid) is not None
        if following.depth != link.depth + 1 or link.pid == following.pid or reader is None or not beyond:
            continue
        of_a_pool = reader.role in ("worker", "pool_worker") or case.job.of_multiprocessing(reader)
        if not of_a_pool and (found := _not_taken(case, link, following)) is not None:
            return found
    return None


def not_read(case: Case, chain: Chain) -> Undrained | None:
    """The full pipe that blocks a chain: a reader that does not read it is no child that is merely waited for."""
    return undrained(case, chain) or unread(case, chain)


def held(case: Case, chain: Chain) -> Finding | None:
    """On a chain whose end is blocked writing to a terminal."""
    terminal = chain.end.descriptor
    if terminal is None or terminal.kind != "tty":
        return None
    stream = f" ({STREAMS[terminal.fd]})" if terminal.fd in STREAMS else ""
    return hung(
        case,
        BLOCKED_PIPE,
        chain,
        summary=f"{who(chain)} writes to the terminal {terminal.target}{stream}, which takes no more: {HELD}",
        patience=STRUCTURAL_SECONDS,
        but={"waiting_for_input": "it writes to the terminal, and does not read it"},
        next=(
            "press Ctrl-Q in the job's terminal (in screen, leave copy mode with Esc)",
            "redirect the job's output to a file next time: no terminal can hold it up then",
        ),
    )


def other_end(case: Case, end: End, *, opens: bool, writes: bool) -> tuple[str, bool]:
    """In words, and whether a process may come there: who holds it, opens a FIFO by its name, or cannot be seen.

    A pipe without a name that no process is seen to hold, not even the thread's own process, has a holder at its other end all the same:
    else the read had met the end of the file, and the write an error (pipe(7)). That one is in another pid namespace, or another
    user's.
    """
    pipe, far = end.descriptor, "read" if writes else "write"
    if end.others:
        told = f"the {'reader' if writes else 'writer'} is {', '.join(f'pid {pid}' for pid in end.others[:3])}"
        left = [m.pid for m in case.job.children(end.node.pid) if not m.alive] if not writes else []
        told += f", and child {left[-1]}, which may have started it, has ended" if left else ""
        return told, not (writes and asks_elsewhere(case, end))
    known = set(pipe.readers if writes else pipe.writers) if pipe is not None else set()
    if known - {end.node.pid} and not writes:
        return "the processes that hold its write end wait for this reader themselves", False
    if opens or pipe is None or pipe.kind == "fifo":
        return f"no other process holds its {far} end", True
    if end.node.pid in known:
        return f"no other process holds its {far} end", False
    return f"which process holds its {far} end cannot be seen from here", True


def asks_once(case: Case, chain: Chain) -> bool:
    """Whether a program that has trained already puts a question: one read of stdin at a line of its own, in no loop over it.

    Nor one that was answered before: what drives a program over its stdin sends the next order when it likes.
    """
    node, pipe = chain.end.node, chain.end.descriptor
    line = calling_line(case.history, node.stack) if node.stack is not None else None
    if line is None or line.loops or pipe is None or pipe.fd != STDIN or node.pid != chain.start.pid:
        return False
    reads = any(call.endswith("stdin.readline") for call in line.calls) or bool(QUESTIONS.intersection(line.calls))
    if not reads or _went_on(case, node):
        return False
    rank = case.job.members[chain.start.pid]
    return bool(quiet(case, rank).evidence) or case.profile(rank).seen(*TRAINING_TAGS)


def _went_on(case: Case, node: Node) -> bool:
    """Whether a thread was seen at the line that it is at, and then elsewhere, before it came back there."""
    stacks = (one.reading for one in case.history.series(Stack, node.pid, node.tid) if one.reading.frames)
    there = [user_frame(stack) == node.frame for stack in stacks]
    return True in there and False in there[there.index(True) :]


RULES = (Rule(BLOCKED_PIPE, blocked_pipe),)
