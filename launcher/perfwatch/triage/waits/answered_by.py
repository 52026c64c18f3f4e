"""Which process that a rank or its driver has started may answer, where the call that it waits in does not say so itself."""

from collections.abc import Iterable

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import FROZEN_SWITCHES_PER_SECOND, motion
from perfwatch.triage.moving.working import may_work
from perfwatch_probes.readings import Thread

AT_IT = 0.5  # of the time since it was asked: an answer in the making costs a thread that much CPU time


def answers(case: Case, pids: Iterable[int], asked_seconds: float) -> bool:
    """Whether one of these processes seems to be at the answer since it was asked: a thread computes all the while.

    One that serves others meanwhile waits for the next request again and again, or does so in ever new threads.
    """
    working = (pid for pid in pids if may_work(case, pid))
    return any(_at_it(case, pid, tid, asked_seconds) for one in working for pid, tid in case.history.of(Thread, one))


def _at_it(case: Case, pid: int, tid: int, asked_seconds: float) -> bool:
    seen, now = case.history.latest(Thread, pid, tid), motion(case.history, pid, tid)
    if seen is None or (seen.reading.run_seconds or 0.0) < AT_IT * asked_seconds:
        return False
    if now.run_share is None:
        return now.state == "R"
    return now.run_share >= AT_IT and (now.switches_per_second or 0.0) <= FROZEN_SWITCHES_PER_SECOND
