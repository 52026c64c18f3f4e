"""Numbers of processes are used again: what a reading names as a parent need not be one."""

from perfwatch.triage.history import History
from tests.triage.rank_looks import BEGAN, FIRST, STEP, STOPPED, judged, process, runs


def test_a_parent_that_is_younger_than_its_child_is_none() -> None:
    """The number of a parent that has ended was used again, by a descendant even: nobody goes round in a circle."""
    history = History()
    history.add(0.0, process(FIRST, FIRST + 1, "python train.py"))
    history.add(0.0, process(FIRST + 1, FIRST, "sleep 10"))
    runs(history, FIRST, STEP, BEGAN, STOPPED)

    assert judged(history, STOPPED).state == "healthy"
