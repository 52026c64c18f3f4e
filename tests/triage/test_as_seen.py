"""Who is shown where no cause can be named."""

from perfwatch.probes.readings import Frame
from tests.triage.rank_looks import BARRIER, FIRST, FOR_EVER, MODULE, TRAIN, job, judged, runs, stands

STEADY = ((Frame("merge", TRAIN, 40), MODULE), (Frame("merge", TRAIN, 41), MODULE))
SOON = 0.6  # seconds after all began: nothing is suspected yet


def test_of_ranks_that_wait_in_a_collective_the_one_that_has_not_come_is_shown() -> None:
    """It is the first to be looked at, whatever it does."""
    history = job(2, trained=False)
    stands(history, FIRST, BARRIER, FOR_EVER, SOON, since=0.0)
    runs(history, FIRST + 1, STEADY, 0.0, SOON)
    verdict = judged(history, SOON)

    assert verdict.summary.startswith(f"no cause can be named: rank 1's main thread of pid {FIRST + 1} at merge")
    assert verdict.next[0].endswith(f"--pid {FIRST + 1}")
