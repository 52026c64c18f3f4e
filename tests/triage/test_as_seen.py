"""Who is shown where no cause can be named."""

import pytest

from perfwatch.report.sentences import links_of
from perfwatch_probes.readings import Frame, ProbeCall, Wait
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


def test_a_loop_with_a_short_sleep_in_each_turn_is_not_said_to_be_silent() -> None:
    """A step each 1.5 s: it was never silent for longer, though each sample shows it in that sleep."""
    history, at = job(1, trained=False), 30.0
    nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.7)
    runs(history, FIRST, [(Frame("fit", TRAIN, 50), MODULE)], 0.0, at, share=0.0002, wait=nap, switches_per_second=0.67)

    verdict = judged(history, at)

    assert verdict.summary.endswith("at fit (train.py:50) sleeps again and again (about every 1.5 s)")
    assert [text for _, text in links_of(verdict.wait_chain)] == [
        f"pid {FIRST}  train.py:50 fit  sleeps again and again (about every 1.5 s)"
    ]
