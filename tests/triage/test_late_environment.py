"""Who collects experience from processes of its own is told which of them is late, and who steps in its own process is not."""

import pytest

from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASES = RECORDINGS / "evaluating" / "fires"


@pytest.mark.parametrize(
    ("case", "late"), [("one_environment_is_late", True), ("environment_beside_one_that_draws", False)]
)
def test_the_environment_that_is_late_is_named_where_environments_are_processes(case: str, late: bool) -> None:
    """A child that draws pictures all the time is none of them."""
    assert ("it waits for process" in retold(CASES / case).summary) == late
