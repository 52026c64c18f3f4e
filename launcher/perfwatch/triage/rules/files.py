"""Waits for storage, for a file or its lock, and for a person at a terminal."""

import re
from itertools import zip_longest
from shlex import quote

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, nearest, silent_seconds, stacks_of, who
from perfwatch.triage.history import Seen
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.memory import has_come_back_from, kept, lull
from perfwatch.triage.patience import DECISIVE_SECONDS, STRUCTURAL_SECONDS, temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End, Node, culprit, node_of
from perfwatch.triage.waits.polling import texts_near
from perfwatch.triage.waits.threads import other_threads, sharers
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import Host, Stack, Thread

BLOCKED_STORAGE = Cause("blocked_storage", "hung", "storage", (Thread,))
FLUSHING_BYTES_PER_SECOND = 1 << 20  # a page cache that shrinks faster than this is being written
CALLS = frozenset(
    "read write open stat sync lock page_fault execve".split()
)  # kinds of calls on files, and one by its name
# Functions of Linux' page cache, block layer and file systems in which a thread waits; there are others.
WAITS = re.compile(
    r"_*(folio|wait_on_page|io_schedule|blk|bio_|rq_qos|balance_dirty|wait_on_buffer|jbd2|ext4|xfs|xlog|btrfs|zfs|zio|nfs|rpc_wait"
    r"|fuse|request_wait_answer|ceph|cifs|smb|wait_for_response|lustre|ll_|cl_|ptlrpc|gpfs|beegfs|p9_|v9fs|nvme|scsi|wb_|writeback)"
)

WAITING_FOR_FILE = Cause("waiting_for_file", "hung", "user_code", (Thread, Stack))
FOLLOWS = 0.55  # confidence for one who takes what another job writes: below what makes a verdict
SLOW_POLL_SECONDS = 5.0  # between two looks for a file: a lock or a flag of its own job is polled far more often
TAKEN_TWICE = "its own process, which has opened the file twice"
INHERITED = "its own process, or one that was forked from it with the file open"
ONE_OPENING = (
    "take the lock once: flock belongs to an opening of a file, so a second opening waits for the first (flock(2))"
)
UNOWNED = 0.78  # confidence where the owner of a lock is not known: who waits may be a victim

WAITING_FOR_INPUT = Cause("waiting_for_input", "hung", "user_code", (Thread, Stack))


# Storage


def blocked_storage(case: Case) -> Outcome:
    """Fires on a chain that ends in a file system call that does not return."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind not in ("storage", "uninterruptible") or not end.still or _flushing(case, chain):
            continue
        file = end.descriptor
        where = f" on {file.mount} ({file.filesystem}, {file.device})" if file is not None and file.mount else ""
        seen = end.kind == "storage" or bool(end.detail) or _of_files(end)
        call = end.node.wait.call if end.node.wait else "a kernel wait"
        what = f"{call} of {end.detail or 'a file'}{where}" if seen else f"{call}, for {chain.awaited}"
        return hung(
            case,
            BLOCKED_STORAGE,
            chain,
            summary=f"{who(chain)} is blocked in {what}",
            patience=temporal(case),
            ceiling=1.0 if seen else ONE_SOURCE,
            but={
                "starved_by_storage": "the call has not returned once",
                "slow_checkpoint": "no page is being written back",
            },
            next=(
                f"grep {file.mount} /proc/mounts"
                if file is not None and file.mount
                else f"cat /proc/{end.node.pid}/task/{end.node.tid}/stack",
                "dmesg | tail",
            ),
        )
    return None


def _of_files(end: End) -> bool:
    """Whether a thread in state D stands in a call on files, or in a function of the kernel's for them."""
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
    holders = ", ".join([*map(_holder, inside), *(outside.said(case, pid) for pid in outside.holders(case, end))][:3])
    blocked = own and end.node.wait is not None and end.node.wait.forever
    twice = blocked and not sharers(case.job, end.node) and not _started_by(case, end.node.pid)
    if own:
        first = TAKEN_TWICE if twice else INHERITED if blocked else "another connection of its own process"
        holders = f"{first} ({holders})" if holders else first
    owner = f"held by {holders}" if holders else "its holder is not known"
    watched = silent_seconds(case, chain)
    alone = twice and end.node.stack is not None
    patience = STRUCTURAL_SECONDS if own and (inside or alone) and all(map(_rests_for_ever, inside)) else temporal(case)
    polls = end.kind == "file_poll"
    lasts = kept(case, rank, watched, patience, end)
    if polls and not lasts.evidence:
        lasts = lull(case, rank, watched, patience, chain.start)
    if polls and has_come_back_from(case, rank, end.node.frame, lasts.seconds):
        return None  # as long before, and then the file came
    follows = polls and _follows_another_job(case, chain)
    unowned = follows or (_others_may_hold_it(case, chain) if polls else not end.others)
    awaited = chain.awaited if polls else f"{end.detail or 'a file'}, {owner}"
    near = texts_near(case.history, end.node) if polls and not end.detail else ()
    return hung(
        case,
        WAITING_FOR_FILE,
        chain,
        summary=f"{who(chain)} waits for {awaited}" + (f"; in its variables: {', '.join(near)}" if near else ""),
        patience=patience,
        silent=lasts.seconds,
        evidence=lasts.evidence,
        ceiling=min(lasts.ceiling, FOLLOWS if follows else UNOWNED) if unowned else lasts.ceiling,
        but={"endless_python": _refuted(end)},
        next=(_next(end, near), *((ONE_OPENING,) if twice else ())),
        culprits=(*map(culprit, inside), *chain.culprits()),
    )


def _started_by(case: Case, pid: int) -> bool:
    """True if a process below this one is alive that is no servant of a library and no worker of its loader."""
    return any(m.alive and m.role not in ("service", "worker") for m in case.job.descendants(pid))


def _others_may_hold_it(case: Case, chain: Chain) -> bool:
    """True if another rank is elsewhere than at a file: it may have made the lock file."""
    return any(
        one.end.kind not in ("file_lock", "file_poll") for pid, one in case.chains.items() if pid != chain.start.pid
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


def _next(end: End, near: tuple[str, ...]) -> str:
    """How to look at it: the file of a lock mostly lies beside what it guards."""
    path = next((text for text in near if "/" in text), "")
    if path:
        return f"ls -l {quote(path)}*"
    if end.detail:
        return f"ls -l {quote(end.detail)}; fuser -v {quote(end.detail)}"
    # A file that is made and removed by name stands in no list of the kernel's; the path is in a variable.
    return "cat /proc/locks" if end.kind == "file_lock" else stacks_of(end.node.pid)


def _holder(node: Node) -> str:
    """A process of the job, or a thread of the one that waits, and where it is meanwhile."""
    name = f"rank {node.rank} (pid {node.pid})" if node.rank is not None else f"pid {node.pid}"
    if node.tid != node.pid:
        name = f"thread {node.name or node.tid}"
    return f"{name}, at {show(node.frame)}" if node.frame is not None else name


def _rests_for_ever(node: Node) -> bool:
    """Whether a thread waits, without a deadline, for something that only another thread of its process can do."""
    return node.motion.frozen is True and node.wait is not None and node.wait.kind == "futex" and node.wait.forever


def _refuted(end: End) -> str:
    return "the loop tests for a file" if end.kind == "file_poll" else "the wait ends when that lock is released"


# A person


def waiting_for_input(case: Case) -> Outcome:
    """Fires on a chain that ends at a prompt."""
    for chain in case.still_chains:
        if chain.end.kind != "input":
            continue
        debugger = "debugger" in chain.end.node.tags
        return hung(
            case,
            WAITING_FOR_INPUT,
            chain,
            summary=f"{who(chain)} waits for input{' at the debugger prompt' if debugger else ' at a terminal'}",
            patience=DECISIVE_SECONDS,
            but={"blocked_pipe": "what it reads is a terminal, not a pipe"},
            next=(
                "type at the job's terminal (c, Enter continues in pdb)",
                "PYTHONBREAKPOINT=0 disables every breakpoint()",
            ),
        )
    return None


RULES = (
    Rule(BLOCKED_STORAGE, blocked_storage),
    Rule(WAITING_FOR_FILE, waiting_for_file),
    Rule(WAITING_FOR_INPUT, waiting_for_input),
)
