"""Processes and threads that have ended while others wait for what they would have produced: which, since when, and what replaced one."""

from dataclasses import dataclass, replace

import msgspec

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import SHELL_ADDS, how_it_ended, last_words, raised_at
from perfwatch.triage.hang import silent_seconds, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.memory import Lull, lull
from perfwatch.triage.moving.motion import has_ended
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.roles.job import youngest_start_gap_seconds
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.locks import A_BARRIER, A_CONDITION, ROOM, awaited
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.waits.threads import BEFORE_SECONDS, OTHERS_MOVE
from perfwatch.triage.waits.workers import pool_members
from perfwatch.triage.words.frames import is_user, show
from perfwatch.verdict import Culprit, Evidence, Finding
from perfwatch_probes.readings import ProcessEnded, Stack, ThreadError, Traceback

SHOWN = 3  # processes that are gone
REPLACED_SECONDS = 0.5  # workers of one pool start within milliseconds of each other
ENDED_SECONDS = 90.0  # before the wait began; a calm job's stacks are read once a minute
LASTS_SECONDS = 5.0  # what a thread has put into a queue keeps the training going so long, when it has ended
ONE_LOOK_SECONDS = 0.5  # the stacks of one look differ by so much

# What is said of a wait between processes, and how a program is written that goes on or raises.
KINDS = {
    A_BARRIER: (
        "{who} waits at a barrier for {ended}, which {has} ended{told}",
        "barrier.abort() where a worker fails, or barrier.wait(timeout=...): the others then raise BrokenBarrierError",
    ),
    A_CONDITION: (
        "{who} waits for {what} between processes that is not signalled; {ended} {has} ended{told}",
        "wait with a timeout",
    ),
    ROOM: (
        "{who} waits for {what} between processes, which its reader makes; {ended} {has} ended{told}",
        "put with a timeout, and ask whether its reader is alive: process.is_alive()",
    ),
}
OF_A_QUEUE = (
    "{ended} {has} ended{told}, and {asks} waits for more from it; {who} waits for room in a queue",
    "ask process.is_alive() where get() times out, or put a last item on every way out of the process",
)
OF_A_LOCK = (
    "{ended} {gone}, and {who} waits for a lock between processes that {kept} never gave back",
    "release it on every way out: with lock: ...",
)


def outlived_seconds(case: Case, chain: Chain) -> float:
    """How long the waiting thread has been seen to wait since the process was known to be gone: a parent that reaps wakes at once."""
    gone = case.history.latest(ProcessEnded, chain.end.node.pid)
    known = gone.at if gone is not None else chain.start.thread_at - (chain.end.silent_seconds or 0.0)
    return max(0.0, chain.start.thread_at - known)


def dated(case: Case, chain: Chain, found: Finding) -> Finding:
    """The same, silent since the waiting thread last ran, as the kernel says; since the end, where that came later and was watched."""
    start = chain.start
    ran_ago = (start.motion.ran_ago_seconds or 0.0) + case.at - start.thread_at
    ends = case.history.series(ProcessEnded, chain.end.node.pid)
    if ends and case.job.members[chain.end.node.pid].process.command:  # a zombie has none: it was seen alive
        ran_ago = min(ran_ago, case.at - ends[0].at)
    return msgspec.structs.replace(found, silent_seconds=round(max(found.silent_seconds or 0.0, ran_ago), 1))


def dead_beside(case: Case, chain: Chain) -> tuple[int, ...]:
    """Python processes of this rank, or beside it, that ended not long before the wait began: one of them may have held the lock.

    Beside it is what its parent started as well, where nobody numbered the ranks. Not a DataLoader's workers: torch raises
    where one dies, and lets them go where an epoch ends.
    """
    began = case.at - (chain.end.silent_seconds or 0.0)
    waits = case.job.members[chain.start.pid]
    parent = waits.process.parent_pid if waits.role == "rank" and waits.rank is None else None
    ends = {key[0]: case.history.series(ProcessEnded, *key)[0].at for key in case.history.entities(ProcessEnded)}
    return tuple(
        m.pid
        for m in case.job.members.values()
        if not m.alive and m.process.python and m.role != "worker"
        if m.rank_pid == waits.rank_pid or m.process.parent_pid == parent
        if ends.get(m.pid, began) >= began - BEFORE_SECONDS
    )


def missed(case: Case, chain: Chain, dead: tuple[int, ...]) -> tuple[int, ...]:
    """Of those that ended, whom the wait is for: at a barrier or for a signal, those that failed, if any did."""
    ends = {pid: case.job.members[pid].ended for pid in dead}
    failed = tuple(pid for pid, end in ends.items() if end is not None and (end.exit_code or end.signal))
    return failed if failed and awaited(chain.end.node) in (A_BARRIER, A_CONDITION) else dead


def left_waiting(case: Case, chain: Chain, dead: tuple[int, ...]) -> str:
    """Who waits between processes, at what, and which of them will not come any more."""
    several = len(dead) > 1
    ended = f"process{'es' if several else ''} {', '.join(map(str, dead[-SHOWN:]))}"
    how, last = how_it_ended(case.history, dead[-1]), show(node_of(case.history, case.job, dead[-1]).frame)
    known = ", ".join([how] * bool(how) + [f"last seen at {last}"] * bool(last)) if not several else ""
    return _kind(chain)[0].format(
        who=who(chain),
        asks=f"pid {chain.start.pid} at {show(chain.start.frame)}",
        ended=ended,
        has="have" if several else "has",
        told=f" ({known})" if known else "",
        what=awaited(chain.end.node),
        gone=f"{'are' if several else 'is'} gone" + (f" ({how})" if how and not several else ""),
        kept="one of them" if several else "it",
    )


def _kind(chain: Chain) -> tuple[str, str]:
    return OF_A_QUEUE if fills_a_queue(chain) else KINDS.get(awaited(chain.end.node), OF_A_LOCK)


def fills_a_queue(chain: Chain) -> bool:
    """True if the end of the chain has something to give, and waits for room: it is the one who asks that is left waiting."""
    return "mp_queue_put" in chain.end.node.inner and chain.start.pid != chain.end.node.pid


def left(chain: Chain, ends: tuple[Culprit, ...]) -> tuple[Culprit, ...]:
    """Who is left waiting, to be named beside the dead."""
    return (culprit(chain.start),) if fills_a_queue(chain) else ends


def lasting(case: Case, chain: Chain) -> tuple[Lull, float]:
    """For how long the wait counts as lasting, and the patience that it gets: more where somebody who may end it moves."""
    watched, patience = silent_seconds(case, chain), temporal(case)
    if chain.end.detail != OTHERS_MOVE:
        return Lull(watched, (), 1.0), STRUCTURAL_SECONDS
    found = lull(case, case.job.members[chain.start.pid], watched, patience)
    return replace(found, ceiling=min(found.ceiling, MAY_COME)), patience


def way_out(chain: Chain) -> str:
    """How a program is written that goes on, or raises, where one of its processes ends."""
    return _kind(chain)[1]


def where_to_look(case: Case, pid: int) -> str:
    """What tells why a process ended: the kernel's log only where it may have been killed."""
    seen = case.history.latest(ProcessEnded, pid)
    code = seen.reading.exit_code if seen is not None and not seen.reading.signal else None
    if code is None or code > SHELL_ADDS:
        return f"dmesg | grep -i {pid}"
    why = f"the traceback of process {pid} in the job's own stderr"
    return why if code else f"why process {pid} left before the others"


def words_of(case: Case, pids: tuple[int, ...]) -> tuple[Evidence, ...]:
    """The last words that the agent kept of processes that ended."""
    kept = [seen.reading for seen in case.history.every(Traceback) if seen.reading.pid in pids]
    return tuple(case.saw("traceback", f"pid {one.pid}", "raised", last_words(one), "no exception") for one in kept[:1])


def replaced(case: Case, chain: Chain) -> Evidence | None:
    """A pool worker that is much younger than its siblings: it stands in for one that died."""
    members = pool_members(case.job, chain.end.node)
    gap = youngest_start_gap_seconds(m for m in members if m.alive)
    dead = [m for m in members if not m.alive]
    as_meant = all(m.ended is not None and m.ended.exit_code == 0 and not m.ended.signal for m in dead)
    if as_meant if dead else gap < REPLACED_SECONDS:
        return None  # a worker may be meant to end after so many tasks
    youngest = max(members, key=lambda m: m.process.start_ticks)
    claim, observed = "replaces a worker that died", f"started {duration(gap)} after its siblings"
    return case.saw("process", f"pid {youngest.pid}", claim, observed, "all workers of a pool start together")


@dataclass(frozen=True)
class EndedThread:
    """A thread that is no more, as it was last seen, and the error that it ended with, if any is known."""

    node: Node
    error: ThreadError | None

    @property
    def where(self) -> str | None:
        """Its last known line, ``function (file:line)``."""
        return (raised_at(self.error) if self.error is not None else None) or show(self.node.frame)

    @property
    def told(self) -> str:
        """That it has ended, in words."""
        name = f"thread {self.node.name or self.node.tid}"
        if self.error is None:
            return f"{name}, last seen at {self.where}, has ended"
        return f"{name} has ended at {self.where} with {last_words(self.error)}"

    @property
    def culprit(self) -> Culprit:
        """The thread as a culprit."""
        return msgspec.structs.replace(culprit(self.node), frame=self.where)

    def evidence(self, case: Case) -> Evidence:
        """What speaks for it."""
        entity = f"pid {self.node.pid} thread {self.node.tid}"
        if self.error is not None:
            return case.saw("traceback", entity, "ended with an error", last_words(self.error), "no exception")
        return case.saw("thread", entity, "is gone", f"last seen at {self.where}", "lives as long as it is waited for")


def ended_beside(case: Case, chain: Chain) -> list[EndedThread]:
    """Those of the waiting thread's process that ended when the wait began, or not long before.

    One without an error must have been seen in the last look that was made well before the wait, or after it: one that had
    ended by then ended as it should, for the job went on without it.
    """
    end, history = chain.end.node, case.history
    if end.wait is not None and end.wait.shared:
        return []
    began = case.at - (chain.end.silent_seconds or 0.0)
    since = began - ENDED_SECONDS
    looks = [one.at for one in history.series(Stack, end.pid, end.pid) if one.at < began - LASTS_SECONDS]
    stacks = {tid: history.series(Stack, end.pid, tid)[-1] for _, tid in history.of(Stack, end.pid)}
    errors = {tid: history.series(ThreadError, end.pid, tid)[-1] for _, tid in history.of(ThreadError, end.pid)}
    seen = [
        tid
        for tid, last in stacks.items()
        if tid not in errors and last.at >= since and any(map(is_user, last.reading.frames))
        if not looks or last.at >= looks[-1] - ONE_LOOK_SECONDS
    ]
    raised = [tid for tid, error in errors.items() if error.at >= since]
    return [
        EndedThread(node_of(history, case.job, end.pid, tid), errors[tid].reading if tid in errors else None)
        for tid in (*raised, *seen)
        if tid in errors or has_ended(history, end.pid, tid)
    ]
