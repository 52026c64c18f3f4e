"""How long a wait is given before it is called a hang: by what may end it, by its own deadline, and by who has just moved."""

from collections.abc import Iterable
from itertools import pairwise

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.arriving import waited_on
from perfwatch.triage.moving.motion import MOVED_SECONDS
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.heartbeats import MEANT_SECONDS
from perfwatch.triage.waits.node import End, Node, in_event_loop
from perfwatch.triage.words.backing_off import next_try_seconds
from perfwatch_probes.readings import Descriptor, Thread

DECISIVE_SECONDS = 1.0  # two sightings, one second apart
STRUCTURAL_SECONDS = 6.0
SETTLED_SECONDS = 2.5  # after a thread has run: two looks, of which the second shows what it does then
RESTED_SECONDS = 2.0  # without a run, after which one run is news
LONG_REST_SECONDS = 10.0  # what rests for less looks up now and then
TOGETHER_SECONDS = 2.0  # who falls asleep so soon after a question was sent was asked
LATE_SECONDS = 1.0  # after its deadline a thread has run again
LONGEST_RECOVERED = 3.0  # times the longest gap that this run has recovered from


def temporal(case: Case) -> float:
    """Patience for an end that time may still heal: the session's, or three times what this run has recovered from."""
    return case.history.once("temporal", lambda: _temporal(case))  # asked for each rank, and made of all


def _temporal(case: Case) -> float:
    clocks = [clock for rank in case.ranks if (clock := case.steps(rank)) is not None]
    longest = max((clock.longest_seconds or 0.0 for clock in clocks), default=0.0)
    return max(case.patience_seconds, LONGEST_RECOVERED * longest)


def outlasts(case: Case, end: End) -> bool:
    """Whether the kernel says that a sleep will last longer than anybody means to wait, and it is no rest before another try.

    Some minutes may be meant: until a window opens, until others have done their round.
    Of any other wait the deadline says when it ends at the latest: what is waited for may come before.
    """
    wait = end.node.wait
    if next_try_seconds(case, end.node) is not None:
        return False
    if wait is None or not _rests(end) or wait.remaining_seconds is None or end.node.motion.frozen is False:
        return False  # of a thread that runs meanwhile the deadline may have been read half
    return wait.remaining_seconds > _meant_seconds(case)


def _rests(end: End) -> bool:
    """Whether the end is a sleep, or a pause that whoever writes into a pipe of its own process cuts short."""
    wait = end.node.wait
    pauses = end.kind == "pipe_empty" and not end.others and wait is not None and wait.kind == "poll"
    return wait is not None and (
        wait.kind == "sleep" or (pauses and _in_its_first_round(end.node, end.silent_seconds or 0.0))
    )


def _in_its_first_round(node: Node, silent: float) -> bool:
    """Whether a wait with a deadline has not yet come to it since the thread stands there: a loop waits again, and again."""
    if node.wait is None or node.wait.remaining_seconds is None or node.motion.ran_ago_seconds is None:
        return False
    return silent <= node.wait.remaining_seconds + node.motion.ran_ago_seconds + LATE_SECONDS


def due_seconds(case: Case, node: Node, silent: float) -> float:
    """Seconds until a thread's wait is over by its own deadline, if that comes before the patience is over; what then is not known."""
    if node.wait is None or node.wait.kind not in ("poll", "futex") or node.wait.remaining_seconds is None:
        return 0.0
    left = node.wait.remaining_seconds - (case.at - node.thread_at) + LATE_SECONDS
    return left if left <= temporal(case) and _in_its_first_round(node, silent) else 0.0


def timer_seconds(case: Case, chain: Chain, silent: float) -> float:
    """Seconds until an event loop at either end of a chain wakes by a timer of its own, if that is soon enough to be meant; else 0.

    A coroutine that sleeps, for a cool-down or before another try, shows as nothing else: beside it the loop listens on connections
    that are merely kept open.
    """
    return max(_timer_of(case, node, silent) for node in (chain.start, chain.end.node))


def holder_rests(case: Case, chain: Chain) -> tuple[float, int] | None:
    """Seconds until a thread wakes from a long rest in a process that holds the other end of what a chain's end waits on, and its pid.

    A pair of sockets that forked processes have inherited does not tell which of them is to answer. Of a server of the job's own only
    who fell asleep as the wait began: others rest for reasons of their own, a library's heartbeat, a watchdog.
    """
    node = chain.end.node
    if chain.end.kind == "network":
        looks = [look for look in _looks_at(case, _asked_over(case, chain.end)) if _with_it(node, look)]
    else:
        looks = _looks_at(case, _holders_of_pairs(case, node))
    rests = [(left, look.reading.pid) for look in looks if (left := _rests_for(case, look)) is not None]
    return min(rests, default=None)


def _looks_at(case: Case, pids: Iterable[int]) -> list[Seen[Thread]]:
    looks = [case.history.latest(Thread, *key) for pid in pids for key in case.history.of(Thread, pid)]
    return [look for look in looks if look is not None]


def _holders_of_pairs(case: Case, node: Node) -> set[int]:
    """Who else holds the other end of a pair of sockets that a thread waits on."""
    fds = waited_on(case.history, node.pid, node.tid, LONG_REST_SECONDS)
    files = [seen.reading for fd in fds if (seen := case.history.latest(Descriptor, node.pid, fd)) is not None]
    pairs = [file.socket for file in files if file.socket is not None and file.socket.family == "unix"]
    return {pid for pair in pairs for pid in pair.peer_pids} - {node.pid}


def _asked_over(case: Case, end: End) -> list[int]:
    """The job's processes that may be asked over a connection: the rank's own, where nobody knows who is at its far end."""
    if end.descriptor is not None and end.descriptor.socket is not None:
        return [pid for pid in end.others if pid in case.job.members]
    rank = case.job.of_rank(end.node.rank_pid or end.node.pid)
    return [member.pid for member in rank if member.pid != end.node.pid]


def _with_it(node: Node, look: Seen[Thread]) -> bool:
    """Whether a thread last ran when another one did."""
    ago, own = look.reading.ran_ago_seconds, node.thread.ran_ago_seconds if node.thread is not None else None
    return ago is not None and own is not None and abs(look.at - ago - (node.thread_at - own)) <= TOGETHER_SECONDS


def _rests_for(case: Case, look: Seen[Thread]) -> float | None:
    """Seconds that a thread will rest yet, of a rest that is longer than a heartbeat's and soon enough over; None of any other."""
    wait, rested = look.reading.wait, look.reading.ran_ago_seconds
    if (
        wait is None
        or wait.remaining_seconds is None
        or rested is None
        or rested + wait.remaining_seconds < LONG_REST_SECONDS
    ):
        return None
    left = wait.remaining_seconds - (case.at - look.at) + LATE_SECONDS
    return left if 0.0 < left <= _meant_seconds(case) else None


def _timer_of(case: Case, node: Node, silent: float) -> float:
    if (
        not in_event_loop(node)
        or node.wait is None
        or node.wait.remaining_seconds is None
        or not _in_its_first_round(node, silent)
    ):
        return 0.0
    left = node.wait.remaining_seconds - (case.at - node.thread_at) + LATE_SECONDS
    return left if left <= _meant_seconds(case) else 0.0


def wakes_soon(case: Case, end: End) -> bool:
    """Whether the kernel says that the sleep, or that of who holds the lock, will end soon enough, or with the next try: no hang."""
    wait = end.node.wait
    sleeps = wait is not None and _rests(end) and wait.remaining_seconds is not None
    return holder_wakes(case, end) is not None or (sleeps and not outlasts(case, end))


def holder_wakes(case: Case, end: End) -> float | None:
    """Seconds until a process outside of the job that holds the lock wakes from a sleep, if that is soon enough."""
    left = outside.wakes_in(case, end)
    return left if left is not None and left <= _meant_seconds(case) else None


def _meant_seconds(case: Case) -> float:
    return max(MEANT_SECONDS, case.patience_seconds)


def settles_in(case: Case, chain: Chain) -> float:
    """Seconds until it is known why the waiting thread, or the end, has run a moment ago after a long rest: it may be on its way."""
    woken = [
        after.at
        for pid, tid in {(node.pid, node.tid) for node in (chain.start, chain.end.node)}
        for before, after in pairwise(case.history.series(Thread, pid, tid, seconds=2 * SETTLED_SECONDS))
        if before.reading.wait is not None and (before.reading.ran_ago_seconds or 0.0) >= RESTED_SECONDS
        if (after.reading.run_seconds or 0.0) > (before.reading.run_seconds or 0.0) + MOVED_SECONDS
    ]
    return max(woken, default=0.0) + SETTLED_SECONDS - case.at if woken else 0.0
