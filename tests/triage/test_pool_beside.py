"""A pool of which one worker waits for orders, perhaps for ever, while another one is at its task."""

from tests.recorded import RECORDINGS
from tests.triage.retold import retold


def test_a_thread_that_waits_for_orders_makes_no_hang_of_a_pool_whose_other_thread_works() -> None:
    """Whose result is waited for is not known from outside."""
    verdict = retold(RECORDINGS / "waiting_on_work" / "fires" / "pool_beside_a_thread_that_takes_orders")

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "thread ThreadPoolExecutor-1_1 at crunch" in verdict.summary


def test_nor_does_a_child_of_the_pool_and_the_one_at_work_is_told_as_perhaps_the_one() -> None:
    """Nothing is said of the pipe at which the first one waits."""
    verdict = retold(RECORDINGS / "blocked_pipe" / "lookalike" / "pool_beside_a_child_that_takes_orders")

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "process 3411 at crunch" in verdict.summary
