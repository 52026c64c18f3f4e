"""Waits on files and pipes: storage, a file or its lock, a person at a terminal, a pipe or a terminal that blocks.

A program that was started with a pipe for its stderr, of which its parent reads stdout only, stops after some 64 KiB of warnings. A
worker of a loader or a pool that does not take what it is sent is ``stuck_worker``.
"""

import re
from itertools import zip_longest
from shlex import quote

from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import patience_of, wakes_soon
from perfwatch.triage.hang import Undrained, hung, nearest, not_read, silent_seconds, stacks_of
from perfwatch.triage.history import Seen
from perfwatch.triage.independence import MAY_COME, ONE_SOURCE
from perfwatch.triage.moving.memory import has_come_back_from, kept, lull, quiet
from perfwatch.triage.patience import DECISIVE_SECONDS, STRUCTURAL_SECONDS
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.chain import STREAMS, Chain
from perfwatch.triage.waits.node import STDIN, End, Node, culprit, node_of, silence
from perfwatch.triage.waits.outside import asks_elsewhere, program
from perfwatch.triage.waits.polling import texts_near
from perfwatch.triage.waits.threads import other_threads, sharers
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import show, user_frame
from perfwatch.verdict import Finding, Outcome, doing
from perfwatch_probes.readings import Descriptor, Host, Stack, Thread

BLOCKED_STORAGE = Cause("blocked_storage", "hung", "storage", (Thread,))
IN_THE_KERNEL = BLOCKED_STORAGE.line("""
    {who} is blocked in {what}
    - not starved_by_storage: the call has not returned once
    - not slow_checkpoint: no page is being written back
    - next: {looks}
    - next: dmesg | tail
""")
FLUSHING_BYTES_PER_SECOND = 1 << 20  # a page cache that shrinks faster than this is being written
# Kinds of calls on files, and one by its name.
CALLS = frozenset("read write open stat sync lock page_fault execve".split())
# Functions of Linux' page cache, block layer and file systems in which a thread waits; there are others.
WAITS = re.compile(
    r"_*(folio|wait_on_page|io_schedule|blk|bio_|rq_qos|balance_dirty|wait_on_buffer|jbd2|ext4|xfs|xlog|btrfs|zfs|zio|nfs|rpc_wait"
    r"|fuse|request_wait_answer|ceph|cifs|smb|wait_for_response|lustre|ll_|cl_|ptlrpc|gpfs|beegfs|p9_|v9fs|nvme|scsi|wb_|writeback)"
)

WAITING_FOR_FILE = Cause("waiting_for_file", "hung", "user_code", (Thread, Stack))
AWAITS_A_FILE = WAITING_FOR_FILE.line("""
    {who} waits for {what}[; in its variables: {near}]
    - not endless_python: [{polls:if}the loop tests for a file][{locked:if}the wait ends when that lock is released]
    - next: {looks}
    - next: [{twice:if}take the lock once: flock belongs to one open() of the file, so a second open() waits for the first (flock(2))]
""")
SLOW_POLL_SECONDS = 5.0  # between two looks for a file: a lock or a flag of its own job is polled far more often
TAKEN_TWICE = "its own process, which has opened the file twice"
INHERITED = "its own process, or one that was forked from it with the file open"

WAITING_FOR_INPUT = Cause("waiting_for_input", "hung", "user_code", (Thread, Stack))
ASKS = WAITING_FOR_INPUT.line("""
    {who} waits for input {where}
    - not blocked_pipe: what it reads is a terminal, not a pipe
    - next: type at the job's terminal (c, Enter continues in pdb)
    - next: PYTHONBREAKPOINT=0 disables every breakpoint()
""")


# Storage


def blocked_storage(case: Case) -> Outcome:
    """Fires on a chain that ends in a file system call that does not return."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind not in ("storage", "uninterruptible") or not end.still or _flushing(case, chain):
            continue
        file = end.descriptor
        mount = file.mount if file is not None else ""
        where = f" on {mount} ({file.filesystem}, {file.device})" if file is not None and mount else ""
        seen = end.kind == "storage" or bool(end.detail) or _of_files(end)
        call = end.node.wait.call if end.node.wait else "a kernel wait"
        what = f"{call} of {end.detail or 'a file'}{where}" if seen else f"{call}, for {chain.awaited}"
        looks = f"grep {mount} /proc/mounts" if mount else f"cat /proc/{end.node.pid}/task/{end.node.tid}/stack"
        return hung(case, IN_THE_KERNEL, chain, ceiling=None if seen else ONE_SOURCE, what=what, looks=looks)
    return None


def _of_files(end: End) -> bool:
    """True if a thread in state D stands in a call on files, or in a function of the kernel's for them."""
    wait, thread = end.node.wait, end.node.thread
    called = wait is not None and (wait.kind in CALLS or wait.call in CALLS)
    return called or (thread is not None and WAITS.match(thread.wchan or "") is not None)


def _flushing(case: Case, chain: Chain) -> bool:
    """An fsync that waits for the page cache to be written, and the page cache shrinks."""
    wait = chain.end.node.wait
    if wait is None or wait.kind != "sync":
        return False
    host = [
        (one.at, (one.reading.dirty_bytes or 0) + (one.reading.writeback_bytes or 0))
        for one in case.history.series(Host, seconds=10.0)
    ]
    if len(host) < 2 or host[-1][0] <= host[0][0]:
        return False
    return (host[0][1] - host[-1][1]) / (host[-1][0] - host[0][0]) > FLUSHING_BYTES_PER_SECOND


# A file


def waiting_for_file(case: Case) -> Outcome:
    """Fires on a chain that ends at a file that does not come or a lock that is not released."""
    return nearest(_of_rank(case, rank) for rank in case.ranks)


def _of_rank(case: Case, rank: Member) -> Outcome:
    chain = case.chains[rank.pid]
    end = chain.end
    if end.kind not in ("file_lock", "file_poll") or case.progress[rank.pid].kind == "moving":
        return None
    own = end.others == (end.node.pid,)
    inside = (
        other_threads(case.history, case.job, end.node)
        if own
        else [node_of(case.history, case.job, pid) for pid in end.others if pid in case.job.members]
    )
    holders = ", ".join(
        [*(_holder(end, one) for one in inside), *(outside.said(case, end, pid) for pid in outside.holders(case, end))][
            :3
        ]
    )
    blocked = own and end.node.wait is not None and end.node.wait.forever
    below = (m for m in case.job.descendants(end.node.pid) if m.alive and m.role not in ("service", "worker"))
    twice = blocked and not sharers(case.job, end.node) and not any(below)
    if own:
        first = TAKEN_TWICE if twice else INHERITED if blocked else "another connection of its own process"
        holders = f"{first} ({holders})" if holders else first
    owner = f"held by {holders}" if holders else "its holder is not known"
    watched = silent_seconds(case, chain)
    patience = patience_of(case, chain.start.pid)
    polls = end.kind == "file_poll"
    lasts = kept(case, rank, watched, patience, end)
    if polls and not lasts.evidence:
        lasts = lull(case, rank, watched, patience, chain.start)
    if polls and has_come_back_from(case, rank, end.node.frame, lasts.seconds):
        return None  # as long before, and then the file came
    awaited = chain.awaited if polls else f"{end.detail or 'a file'}, {owner}"
    near = texts_near(case.history, end.node) if polls and not end.detail else ()
    return hung(
        case,
        AWAITS_A_FILE,
        chain,
        patience=patience,
        silent=lasts.seconds,
        evidence=lasts.evidence,
        ceiling=min(lasts.ceiling, ONE_SOURCE if polls and _follows_another_job(case, chain) else 1.0),
        culprits=(*map(culprit, inside), *chain.culprits()),
        **Facts(
            what=awaited, near=", ".join(near), polls=polls, locked=not polls, twice=twice, looks=_looks(end, near)
        ),
    )


def _follows_another_job(case: Case, chain: Chain) -> bool:
    """True if a process that has never trained evaluates, or sleeps for long between two looks: the next checkpoint comes when it comes."""
    rank = case.job.members[chain.start.pid]
    seen, steps = case.profile(rank), case.progress[rank.pid].steps
    if (steps is not None and steps.count) or seen.seen("backward", "optimizer", "scaler"):
        return False
    looks = case.history.series(Thread, chain.end.node.pid, chain.end.node.tid)
    sleeps = (
        _sleep_seconds(one) >= SLOW_POLL_SECONDS and not _woke_before(one, *after)
        for one, *after in zip_longest(looks, looks[1:])
    )
    return seen.seen("forward") or any(sleeps)


def _sleep_seconds(look: Seen[Thread]) -> float:
    wait = look.reading.wait
    return 0.0 if wait is None else wait.remaining_seconds or 0.0


def _woke_before(look: Seen[Thread], after: Seen[Thread] | None) -> bool:
    """True if a thread ran before its sleep should have ended: the deadline was read while it was being written."""
    if after is None or after.reading.ran_ago_seconds is None:
        return False
    return look.at < after.at - after.reading.ran_ago_seconds < look.at + _sleep_seconds(look)


def _looks(end: End, near: tuple[str, ...]) -> str:
    """How to look at it: the file of a lock mostly lies beside what it guards."""
    path = next((text for text in near if "/" in text), "")
    if path:
        return f"ls -l {quote(path)}*"
    if end.detail:
        return f"ls -l {quote(end.detail)}; fuser -v {quote(end.detail)}"
    # A file that is made and removed by name stands in no list of the kernel's; the path is in a variable.
    return "cat /proc/locks" if end.kind == "file_lock" else stacks_of(end.node.pid)


def _holder(end: End, node: Node) -> str:
    """A process of the job, or a thread of the one that waits, and where it is meanwhile."""
    name = f"rank {node.rank} (pid {node.pid})" if node.rank is not None else f"pid {node.pid}{program(end, node.pid)}"
    if node.tid != node.pid:
        name = f"thread {node.name or node.tid}"
    return f"{name}, at {show(node.frame)}" if node.frame is not None else name


# A person


def waiting_for_input(case: Case) -> Outcome:
    """Fires on a chain that ends at a prompt."""
    for chain in case.still_chains:
        if chain.end.kind != "input":
            continue
        where = "at the debugger prompt" if "debugger" in chain.end.node.tags else "at a terminal"
        return hung(case, ASKS, chain, patience=DECISIVE_SECONDS, where=where)
    return None


# A pipe or a terminal: a full one that is not read, an empty one that is not written to, a question on stdin

BLOCKED_PIPE = Cause("blocked_pipe", "hung", "user_code", (Thread, Descriptor))
AT_A_PIPE = BLOCKED_PIPE.line("""
    {who} {does} {pipe}[ ({stream})]; {missing}
    - saw pipe of {pipe}: the other end | {missing} | it is {way}
    - not slow_output: not one write went through meanwhile
    - next: ls -l {path:quote}
""")
WAITS_FOR_ITS_WRITER = BLOCKED_PIPE.line("""
    {who} is blocked writing to its {stream}, a full pipe that pid {reader} does not read; pid {reader} at {line} {its}
    - saw pipe of {pipe}: is full; pid {reader} holds the reading end | it is blocked in {call}[ at {line}], not on this pipe | it is read
    - not stuck_worker: pid {reader} waits for pid {pid}, which cannot continue
    - next: where pid {pid} is started: {stream}=subprocess.DEVNULL or a file, or a thread that keeps reading it
""")
DOES_NOT_READ = BLOCKED_PIPE.line("""
    {who} writes into the full pipe {pipe}, which pid {reader} ({name}) does not read: it {its}
    - saw pipe of {pipe}: is full; pid {reader} holds the reading end | it is blocked in {call}[ at {line}], not on this pipe | it is read
    - not blocked_child: pid {pid} waits for room in the pipe, not for an end
    - not slow_output: not one write went through meanwhile
    - next: ps -o pid,stat,wchan:30,args -p {reader}
    - next: find out why it does not read, kill it, or write with a timeout
""")
TAKES_NO_MORE = BLOCKED_PIPE.line("""
    {who} writes to the terminal {terminal}[ ({stream})], which accepts no more output: Ctrl-S was pressed, or the program that shows it
    (tmux, screen, ssh) has stopped
    - not waiting_for_input: it writes to the terminal, and does not read it
    - next: press Ctrl-Q in the job's terminal (in screen, leave copy mode with Esc)
    - next: redirect the job's output to a file next time: then no terminal can block it
""")

QUESTIONS = frozenset({"input", "getpass", "getpass.getpass", "click.confirm", "click.prompt"})


def blocked_pipe(case: Case) -> Outcome:
    """Fires on a chain that ends in a pipe."""
    for chain in case.still_chains:
        if (found := not_read(case, chain)) is not None:
            return _not_read(case, chain, found)
        end = chain.end
        if end.kind not in ("pipe_full", "pipe_empty") or not end.still or "child" in chain.through:
            continue
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
    way = "read" if writes else "written to"
    does = "writes into the full pipe" if writes else "reads the empty pipe"
    does = f"waits to open for {'writing' if writes else 'reading'} the FIFO" if opens else does
    return hung(
        case,
        AT_A_PIPE,
        chain,
        patience=STRUCTURAL_SECONDS if asks or not may_come else None,
        ceiling=MAY_COME if may_come else 1.0,
        **Facts(does="waits for an answer on" if asks else does, pipe=name, stream=stream, missing=missing, way=way),
        path=name if name.startswith("/") else f"/proc/{end.node.pid}/fd",
    )


def _not_read(case: Case, chain: Chain, found: Undrained) -> Finding:
    """Both ends of a full pipe, by name: the reader is blocked elsewhere, often on the writer itself."""
    writer, reader, end, pipe = found.writer, found.reader, chain.end, found.pipe
    ended, around = found.ended(case, chain), end.kind == "cycle"
    both = [culprit(reader), *ended.culprits()]
    return hung(
        case,
        WAITS_FOR_ITS_WRITER if around else DOES_NOT_READ,
        ended,
        silent=None if around else min(silence(case.history, writer) or 0.0, end.silent_seconds or 0.0),
        # The line that the training thread is at is where to fix it.
        culprits=both if not around or reader.pid == chain.start.pid else both[::-1],
        **Facts(pipe=pipe.target, stream=STREAMS.get(pipe.fd), reader=reader.pid, its=doing(found.reader_waits_for)),
        **Facts(call=reader.wait.call if reader.wait else "?", line=show(reader.frame)),
        name=" ".join(" ".join(case.job.members[reader.pid].process.command).split())[:80],
    )


def held(case: Case, chain: Chain) -> Finding | None:
    """On a chain whose end is blocked writing to a terminal."""
    terminal = chain.end.descriptor
    if terminal is None or terminal.kind != "tty":
        return None
    return hung(case, TAKES_NO_MORE, chain, terminal=terminal.target, stream=STREAMS.get(terminal.fd))


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
    """True if a program that has trained already puts a question: one read of stdin at a line of its own, in no loop over it.

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
    """True if a thread was seen at the line that it is at, and then elsewhere, before it came back there."""
    stacks = (one.reading for one in case.history.series(Stack, node.pid, node.tid) if one.reading.frames)
    there = [user_frame(stack) == node.frame for stack in stacks]
    return True in there and False in there[there.index(True) :]


RULES = (
    Rule(BLOCKED_STORAGE, blocked_storage),
    Rule(WAITING_FOR_FILE, waiting_for_file),
    Rule(WAITING_FOR_INPUT, waiting_for_input),
    Rule(BLOCKED_PIPE, blocked_pipe),
)
