"""A program whose output nobody takes: it writes into a full pipe, and who could read it waits for that program at something else.

Each waits for the other. A program that was started with a pipe for its stderr, of which its parent reads stdout only, stops
like this after some 64 KiB of warnings.
"""

from dataclasses import dataclass, replace

from perfwatch.triage.case import Case
from perfwatch.triage.present import open_file
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End, Node, node_of, silence
from perfwatch.triage.waits.releasing import ASKED
from perfwatch.triage.waits.threads import other_threads, worked_for
from perfwatch_probes.readings import Descriptor

OUTPUTS = (1, 2)


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


def undrained(case: Case, chain: Chain) -> Undrained | None:
    """On a chain that comes back to itself: a program that writes to its stdout or stderr, and its parent, which waits for it.

    Not where the training thread itself waits for that program to end: both waits stand in ``blocked_child``.
    """
    if chain.end.kind != "cycle":
        return None
    for link in chain.links:
        member = case.job.members.get(link.pid)
        parent = member.process.parent_pid if member is not None else None
        # The way may begin at the writer as well: the one that should read comes after it then, and leads back to it.
        waiting = [one for one in chain.links if one.pid == parent and (one.depth == link.depth - 1 or not link.depth)]
        if not waiting or (waiting[-1].pid == chain.start.pid and chain.through & ASKED):
            continue
        writer = node_of(case.history, case.job, link.pid, link.tid)
        reader = node_of(case.history, case.job, waiting[-1].pid, waiting[-1].tid)
        pipe = blocked_writing(case, writer)
        if (
            pipe is None
            or pipe.fd not in OUTPUTS
            or pipe.kind != "pipe"
            or reader.pid not in pipe.readers
            or takes(case, reader, pipe)
        ):
            continue
        if not worked_for(
            case.history, other_threads(case.history, case.job, reader)
        ):  # one of those may be to read it
            return Undrained(writer, reader, pipe, waiting[-1].waits_for)
    return None


def blocked_writing(case: Case, node: Node) -> Descriptor | None:
    """The full pipe into which a thread is blocked writing."""
    wait = node.wait
    if wait is None or wait.kind != "write" or wait.fd is None or not node.motion.frozen:
        return None
    seen = open_file(case.history, node.pid, node.tid, wait.fd)
    return seen.reading if seen is not None and seen.reading.kind in ("pipe", "fifo") else None


def takes(case: Case, reader: Node, pipe: Descriptor) -> bool:
    """Whether what a thread is blocked in is that very pipe, alone or among others, or cannot be told."""
    wait = reader.wait
    if wait is None or not reader.motion.frozen:
        return True
    fds = [wait.fd] if wait.fd is not None else [one.fd for one in wait.polled]
    files = [open_file(case.history, reader.pid, reader.tid, fd) for fd in fds]
    return any(file is None or file.reading.kind == "epoll" or file.reading.inode == pipe.inode for file in files)
