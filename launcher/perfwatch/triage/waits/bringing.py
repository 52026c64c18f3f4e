"""For whose work a rank waits: a child, a pool, an actor, a lock's owner, or whoever may bring a file that it looks for again and again."""

from itertools import zip_longest

from perfwatch.triage.cards.gpu import unseen
from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.giving import giving
from perfwatch.triage.moving.loops import ALIKE_SHARE, in_one_call, may_end
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.working import (
    BESIDE_SHARE,
    Work,
    at_work_in_pool,
    could_release,
    data_of,
    is_shared,
    may_work,
    started_by,
    turns_a_loop,
)
from perfwatch.triage.ranks.absence import RUNS, in_collective
from perfwatch.triage.ranks.away import prepare
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.data_makers import WINDOW_SECONDS
from perfwatch.triage.shares.starving import for_training
from perfwatch.triage.slowness import asleep_share
from perfwatch.triage.waits.actors import REMOTE
from perfwatch.triage.waits.answered_by import answered_by
from perfwatch.triage.waits.asking import asks, only_waits
from perfwatch.triage.waits.batches import since_output, through_a_queue, without_a_batch
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import may_wait_unseen
from perfwatch_probes.readings import Thread

ASKED = frozenset({"child", "join_process", "supervised"})
HANDED_OVER = frozenset({"pipe", "socket"})  # by a queue, a manager or a connection of multiprocessing
ASLEEP = 0.6  # of the time: what is handed over may take some work to put together
PATIENT_SECONDS = (
    5.0  # of sleep between two looks for a file: for a lock or a flag of its own job one looks far more often
)
DELIVERED_SECONDS = 15.0  # since a pool's worker handed over a result
LOOKS_FOR_A_FILE = ("file_lock", "file_poll")
HELD = ("file_lock", "pipe_empty", "pipe_full")  # by those who are known by number, in the job or outside of it


def asked(case: Case, chain: Chain) -> tuple[int, ...]:
    """The processes for whose work it waits."""
    if gives := giving(case, chain):
        return tuple(gives)
    if fellows := dict.fromkeys(one.pid for one in at_work_in_pool(case, chain) if one.pid != chain.start.pid):
        return tuple(fellows)
    if is_shared(chain.end):
        return chain.end.others
    if chain.end.kind in HELD:
        waiting = {chain.end.node.pid}.difference(chain.end.others)
        return tuple(pid for pid in could_release(case, chain) if pid not in waiting)
    # Who brings the file, or writes what is asked for, is not known; a child or a rank that works is likely to.
    if chain.end.kind == "file_poll" or asks(case, chain):
        return may_bring(case, chain)
    if pids := answered_by(case, chain):
        return pids
    if chain.end.kind == "lock" and turns_a_loop(chain.end):
        return could_release(case, chain)
    if in_collective(case, chain):
        return prepare(case)
    if chain.end.kind == "rendezvous":
        return _started_at_work(case)
    if REMOTE in chain.through:
        return tuple(dict.fromkeys(end.node.pid for end in chain.ends if not end.still))
    if "pool" in chain.through and since_output(case, chain) < DELIVERED_SECONDS:
        return (chain.end.node.pid, *(link.pid for link in chain.links if link.depth == 1))
    if chain.through & HANDED_OVER and _prepares(case, chain):  # a manager hands over what others of them brought
        return started_by(case, chain.start.pid)
    child = case.job.branch(chain.end.node.pid, chain.start.pid) if chain.through & ASKED else None
    if child is None or case.job.members[child.pid].role == "worker":
        return ()
    return (child.pid, *started_by(case, child.pid))


def helper_at_work(case: Case, chain: Chain) -> Work | None:
    """What a thread of its process, or another process, computes that it is known to wait for, in no loop that waits for a condition.

    By a join, a future, a queue or a pipe. One that spins for a card looks the same where the card does not tell.
    """
    node = chain.end.node
    own = node.pid == chain.start.pid and node.tid != chain.start.tid
    if chain.end.kind not in RUNS or not (own or through_a_queue(case, chain)):
        return None
    if unseen(case.history, node.pid) or may_wait_unseen(case.history, node):
        return None
    if not may_end(case.history, node) or in_one_call(case.history, node):
        return None
    used = Work(node.motion.run_share or 0.0, data_of(case, node.pid, [node.tid]), (node.tid,))
    return used if used.cores >= BESIDE_SHARE else None


def writes_go_through(chain: Chain) -> bool:
    """Whether the training thread waits in writes that go through, one by one: who reads them is slow, and what it waits for is output."""
    wait = chain.start.wait
    return wait is not None and wait.kind == "write" and bool(chain.start.motion.io_calls)


def waited_seconds(case: Case, chain: Chain) -> float:
    """For how long the training thread has been waiting for the end of its chain, which runs: an event loop looks up now and then."""
    if chain.end.node.pid != chain.start.pid:
        return without_a_batch(case, chain)[0]
    seen = motion(case.history, chain.start.pid, chain.start.tid, case.patience_seconds)
    return max(seen.ran_ago_seconds or 0.0, seen.seconds if seen.steady_share >= ALIKE_SHARE else 0.0)


def _prepares(case: Case, chain: Chain) -> bool:
    """Whether the rank that waits makes no steps of what it is given."""
    rank = case.job.members[chain.start.pid]
    return for_training(case, rank, case.profile(rank, WINDOW_SECONDS)) is False


def preparing(case: Case) -> list[Chain]:
    """Chains of ranks that get result after result from a pool, a pipe or a manager, and make no steps of them."""
    return [
        case.chains[rank.pid]
        for rank in case.ranks
        if _rests(case, rank)
        and case.chains[rank.pid].through & {"pool", *HANDED_OVER}
        and _prepares(case, case.chains[rank.pid])
    ]


def _rests(case: Case, rank: Member) -> bool:
    """Whether it waits nearly all the time; of short waits, one after the other, the stacks differ."""
    now = case.progress[rank.pid].kind
    return now == "still" or (now == "busy" and (asleep_share(case, rank) or 0.0) >= ASLEEP)


def may_bring(case: Case, chain: Chain) -> tuple[int, ...]:
    """What the rank itself has started, the other ranks that are at something of their own, and who works of what ranks have started."""
    others = [case.chains[pid] for pid in case.chains if pid != chain.start.pid]
    pids = [one.start.pid for one in others if _is_at_its_own(case, one)]
    found = dict.fromkeys((*started_by(case, chain.start.pid), *pids, *_started_at_work(case)))
    return tuple(pid for pid in found if pid != chain.start.pid and not only_waits(case, pid))


def _started_at_work(case: Case) -> tuple[int, ...]:
    """What any of the ranks has started and that works."""
    started = (pid for rank in case.chains for pid in started_by(case, rank))
    return case.history.once("started_at_work", lambda: tuple(pid for pid in started if may_work(case, pid)))


def asking(case: Case) -> list[Chain]:
    """Chains of ranks that spin, or nap for a moment all the while, and ask for what only others can change."""
    still = {chain.start.pid for chain in case.still_chains}
    others = [chain for pid, chain in case.chains.items() if case.progress[pid].kind != "moving" and pid not in still]
    return [chain for chain in others if asks(case, chain)]


def may_be_answered(case: Case, chain: Chain) -> bool:
    """Whether somebody works who may change what a rank asks for again and again, or write the file that it looks for."""
    looks = chain.end.kind == "file_poll" or asks(case, chain)
    return looks and any(may_work(case, pid) for pid in may_bring(case, chain))


def others_may_hold_it(case: Case, chain: Chain) -> bool:
    """Whether other ranks of the job are somewhere else than at a file: one of them may have made the lock file."""
    return any(one.end.kind not in LOOKS_FOR_A_FILE for pid, one in case.chains.items() if pid != chain.start.pid)


def takes_what_comes(case: Case, chain: Chain) -> bool:
    """Whether a process that has never trained evaluates, or sleeps for long between two looks for a file.

    Another job brings it, when it has one: the next checkpoint, new weights.
    """
    rank = case.job.members[chain.start.pid]
    seen, steps = case.profile(rank), case.progress[rank.pid].steps
    if (steps is not None and steps.count) or seen.seen("backward", "optimizer", "scaler"):
        return False
    looks = case.history.series(Thread, chain.end.node.pid, chain.end.node.tid)
    sleeps = any(
        _to_sleep(one) >= PATIENT_SECONDS and not _woke(one, *after) for one, *after in zip_longest(looks, looks[1:])
    )
    return seen.seen("forward") or sleeps


def _to_sleep(look: Seen[Thread]) -> float:
    wait = look.reading.wait
    return 0.0 if wait is None else wait.remaining_seconds or 0.0


def _woke(look: Seen[Thread], after: Seen[Thread] | None) -> bool:
    """Whether a thread ran before its sleep should have ended: the deadline was read while it was being written."""
    if after is None or after.reading.ran_ago_seconds is None:
        return False
    return look.at < after.at - after.reading.ran_ago_seconds < look.at + _to_sleep(look)


def _is_at_its_own(case: Case, chain: Chain) -> bool:
    """Who waits for a file too, or for the others (in a collective, or where ranks meet), brings nothing; nor does who trains.

    Whatever CPU time that takes: rank 0 looks 300 times a second whether all have come to torch's store.
    """
    waits = chain.end.kind in (*LOOKS_FOR_A_FILE, "rendezvous") or in_collective(case, chain)
    return not waits and case.progress[chain.start.pid].kind != "moving"
