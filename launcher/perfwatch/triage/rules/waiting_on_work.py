"""The training thread waits for work in progress: by a child process, a lock holder, another rank, or other threads."""

from collections.abc import Iterable, Iterator

from perfwatch.triage.case import Case
from perfwatch.triage.hang import nearest, silent_seconds, who
from perfwatch.triage.moving.giving import giving
from perfwatch.triage.moving.working import MOVING_BYTES, Work, beside, busy_with, goes_on, moves, work_beside
from perfwatch.triage.patience import temporal
from perfwatch.triage.ranks.absence import in_collective
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.going_through import LASTS, through_data
from perfwatch.triage.waits.asking import asks
from perfwatch.triage.waits.bringing import asked, asking, helper_at_work, preparing, waited_seconds, writes_go_through
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import may_wait_unseen
from perfwatch.triage.waits.node import NATIVE_WAIT, culprit, node_of
from perfwatch.triage.waits.releasing import named
from perfwatch.triage.waits.sleeping import sleeps_until
from perfwatch.triage.waits.told_as_waiting import waits_for
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import Process, ProcessUsage, Thread

CAUSE = Cause("waiting_on_work", "busy", "user_code", (Process, ProcessUsage, Thread))

MOVES_DATA, BURNS_CPU = 0.88, 0.72
BESIDE = 0.65  # confidence where others work beside one that waits: whether for that one is not seen


def judge(case: Case) -> Outcome:
    """Fires on a rank that stands still at the beginning of a chain to a process that works."""
    waiting = (found for chain in (*case.still_chains, *preparing(case), *asking(case)) for found in _of(case, chain))
    return nearest(one for found in (waiting, through_data(case, CAUSE), sleeps_until(case, CAUSE)) for one in found)


def _of(case: Case, chain: Chain) -> Iterator[Outcome]:
    """Who works for one that waits: those whom it is known to wait for, or else threads of its own process."""
    if writes_go_through(chain):
        return
    found = [one for pid in asked(case, chain) if (one := _finding(case, chain, pid)) is not None]
    yield from found
    if not found and (used := helper_at_work(case, chain)):
        waited = waited_seconds(case, chain)
        if waited >= LASTS * temporal(case):  # until then it may only be slow
            yield _by_threads(case, chain, used, f"for {who(chain)}, which works", waited, chain.end.node.pid)
    elif not found and chain.end.node.pid == chain.start.pid and goes_on(case, chain):
        yield from _beside(case, chain)


def _beside(case: Case, chain: Chain) -> Iterator[Finding]:
    for node in beside(case, chain):
        if (used := work_beside(case, node)) is not None:
            first = node_of(case.history, case.job, node.pid, used.tids[0])
            name = named(first, chain.end.node.pid) + (f" and {len(used.tids) - 1} more" if len(used.tids) > 1 else "")
            where = "its process" if node.pid == chain.end.node.pid else f"rank {node.rank}"
            yield _by_threads(
                case, chain, used, f"while others of {where} work: {name}", silent_seconds(case, chain), node.pid
            )


def _finding(case: Case, chain: Chain, pid: int) -> Finding | None:
    node = node_of(case.history, case.job, pid)
    used = busy_with(case, pid) if moves(case, chain.end.node if chain.end.node.pid == pid else node) else None
    if rate := giving(case, chain).get(pid):
        used = Work(0.0 if used is None else used.cores, rate)
    if used is None or (used.data < MOVING_BYTES and may_wait_unseen(case.history, node)):
        return None
    member, all_wait = case.job.members.get(pid), in_collective(case, chain)
    name = f" ({_command(member.process.command)})" if member is not None and not all_wait else ""
    at = f" at {show(node.frame)}" if node.frame else ""
    doing = used.said
    sure = used.data >= MOVING_BYTES and not all_wait and chain.end.kind not in ("file_poll", NATIVE_WAIT)
    silent = silent_seconds(case, chain)
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"{waits_for(case, chain, node)}process {pid}{name}, which works{at}: {doing}",
        confidence=BESIDE if asks(case, chain) else MOVES_DATA if sure else BURNS_CPU,
        owner=CAUSE.owner,
        culprits=(culprit(node) if member is not None else Culprit(pid=pid),),
        wait_chain=chain.links,
        evidence=(case.saw("usage", f"pid {pid}", "works", doing, "nothing would mean a hang"), _waits(case, chain)),
        next=(f"perfwatch attach {chain.start.pid} --watch",),
        silent_seconds=round(silent, 1) if all_wait else None,
        decides_in_seconds=round(max(0.0, LASTS * temporal(case) - silent), 1) if all_wait else 0.0,
    )


def _by_threads(case: Case, chain: Chain, used: Work, waits: str, silent: float, pid: int) -> Finding:
    """An upload, a decoder or a copy in threads that the training thread waits for or beside, in words, and for how long."""
    doing = used.said
    doubtful = LASTS * temporal(case) - silent if chain.end.kind == "lock" else 0.0
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"the training thread waits {waits}: {doing}",
        confidence=BESIDE,
        owner=CAUSE.owner,
        culprits=(culprit(node_of(case.history, case.job, pid, used.tids[0])),),
        wait_chain=chain.links,
        evidence=(case.saw("threads", f"pid {pid}", "work", doing, "nothing would mean a hang"), _waits(case, chain)),
        next=(f"perfwatch attach {chain.start.pid} --watch",),
        silent_seconds=round(silent, 1),
        decides_in_seconds=round(max(0.0, doubtful), 1),
    )


def _waits(case: Case, chain: Chain) -> Evidence:
    since = f"at {show(chain.start.frame)} for {chain.start.motion.ran_ago_seconds or 0.0:.0f} s"
    return case.saw("thread", f"pid {chain.start.pid}", "the training thread waits for it", since)


def _command(words: Iterable[str]) -> str:
    return " ".join(" ".join(words).split())[:60]


RULES = (Rule(CAUSE, judge),)
