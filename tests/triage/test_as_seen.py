"""Who is shown where no cause can be named."""

import pytest

from perfwatch_probes.readings import Frame, ProbeCall
from tests.triage.rank_looks import BARRIER, FIRST, FOR_EVER, MODULE, STOPPED, TRAIN, job, judged, runs, stands

STEADY = ((Frame("merge", TRAIN, 40), MODULE), (Frame("merge", TRAIN, 41), MODULE))
SOON = 0.6  # seconds after all began: nothing is suspected yet


def test_of_ranks_that_wait_in_a_collective_the_one_that_has_not_come_is_shown() -> None:
    """It is the first to be looked at, whatever it does."""
    history = job(2, trained=False)
    stands(history, FIRST, BARRIER, FOR_EVER, SOON, since=0.0)
    runs(history, FIRST + 1, STEADY, 0.0, SOON)
    verdict = judged(history, SOON)

    assert verdict.summary.startswith(f"no cause fits so far: rank 1's main thread of pid {FIRST + 1} at merge")
    assert verdict.next[0].endswith(f"stacks {FIRST + 1}")


@pytest.mark.parametrize(("silent", "suspected"), [(30.0, False), (70.0, True)])
def test_without_stacks_a_job_that_rests_for_the_whole_patience_is_suspected_to_hang(
    silent: float, suspected: bool
) -> None:
    """From outside of what may be read, a lock and an item that will come look alike; that nothing ran is known."""
    history, at = job(1, trained=False), STOPPED + silent
    stands(history, FIRST, (), FOR_EVER, at)
    history.add(at - 1.0, ProbeCall(probe="stacks", entity=f"pid {FIRST}", duration_seconds=0.0, outcome="denied",
                                    reason="ptrace is not allowed", advice="sudo perfwatch attach 200"))  # fmt: skip
    verdict = judged(history, at)

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert (verdict.suspect and verdict.suspect.state) == ("hung" if suspected else None)
