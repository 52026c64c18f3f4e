"""Locks on files: workers that have one in turn, one that a child inherited with the opening, and a holder that was hardly seen."""

import msgspec
import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch_probes.readings import Descriptor, Frame, Process, Reading, SourceLine, Stack, Thread, Wait
from tests.recorded import RECORDINGS
from tests.sessions import session
from tests.triage.retold import retold

CASE = RECORDINGS / "contended_lock" / "fires" / "table_that_workers_lock"


@pytest.mark.parametrize(
    ("holders", "cause"),
    [(None, "contended_lock"), ((1,), "starved_by_transforms"), ((), "starved_by_transforms")],
    ids=["in turn", "somebody else", "nobody"],
)
def test_workers_that_lock_a_file_in_turn_are_told(holders: tuple[int, ...] | None, cause: str) -> None:
    """Somebody outside of the job who keeps it is no turn."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or holders is None:
            return reading
        return msgspec.structs.replace(reading, lock_holders=holders)

    verdict = retold(CASE, changed)

    assert (verdict.state, verdict.cause) == ("slow", cause)
    assert holders is not None or "in turn for a lock on /home/user/runs/photos.db" in verdict.summary


FORKED = RECORDINGS / "waiting_for_file" / "fires"
ADVICE = "take the lock once"


def test_a_lock_that_a_fork_may_hold_is_not_said_to_be_taken_twice() -> None:
    """The child is uploading under it; flock belongs to the opening, which both share."""
    verdict = retold(FORKED / "lock_that_a_fork_inherited")

    assert "held by its own process, or one that was forked from it with the file open" in verdict.summary
    assert not any(ADVICE in one for one in verdict.next)


def test_where_nobody_shares_the_opening_it_is() -> None:
    """Nobody but the process itself could let go."""
    verdict = retold(FORKED / "lock_file_opened_twice")

    assert "its own process, which has opened the file twice" in verdict.summary
    assert any(ADVICE in one for one in verdict.next)


RANKS, LOCKED, SECONDS = (11, 12), "/app/edges.lock", 90
WORK = (Frame("edges", "/app/bin.py", 20), Frame("cached", "/app/bin.py", 30), Frame("main", "/app/bin.py", 50))
LOCKS = WORK[1:]
NATIVE = Frame("_quantile", "/usr/lib/python3/site-packages/numpy/lib/_function_base_impl.py", 4786)
FLOCK = Wait(call="flock", number=73, kind="lock", fd=5, forever=True)


@pytest.mark.parametrize("looks", [1, SECONDS])
def test_a_holder_that_runs_in_a_loop_that_ends_keeps_no_rank_hung(looks: int) -> None:
    """One rank computes under a lock on a file, another waits for it beyond the hang timeout; on a crowded machine few looks come."""
    history = History()
    for rank, pid in enumerate(RANKS):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=1, name="python", command=("python", "bin.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
    text = "drawn = [np.quantile(column, q) for _ in range(resamples)]"
    history.add(
        0.0, SourceLine(file="/app/bin.py", line=20, text=text, loops=("for",), loop_calls=("np.quantile", "range"))
    )
    holder, waiter = RANKS
    history.add(0.5, Descriptor(pid=waiter, fd=5, kind="file", target=LOCKED, lock_holders=(holder,)))
    for second in range(1, SECONDS + 1):
        at = float(second)
        history.add(at, Thread(pid=waiter, tid=waiter, name="python", state="S", cpu_seconds=5.0, wait=FLOCK, run_seconds=5.0,
                               voluntary_switches=50, ran_ago_seconds=at))  # fmt: skip
        history.add(at, Stack(pid=waiter, tid=waiter, frames=LOCKS, samples=20, span_seconds=1.0))
        if second > SECONDS - looks:
            history.add(at, Thread(pid=holder, tid=holder, name="python", state="R", cpu_seconds=5.0 + at, run_seconds=5.0 + at,
                                   voluntary_switches=50, ran_ago_seconds=0.0))  # fmt: skip
            samples = 1 if looks == 1 else 20
            history.add(
                at, Stack(pid=holder, tid=holder, frames=(NATIVE, *WORK), samples=samples, span_seconds=0.05 * samples)
            )
    history.at = float(SECONDS)

    assert judge(Case(history, session(mode="attach", root_pids=RANKS))).state == "inconclusive"
