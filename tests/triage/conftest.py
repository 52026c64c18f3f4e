"""What the wait graph does not know yet: tests that state a truth and fail. One that passes fails the suite, so that its line goes."""

import pytest

UNSEEN = "the graph has no claim of this releaser: the wait is open, and nothing is said of it"
IN_TURN = "a server that takes requests in turns is taken for work, though it may have lost this one"
KNOWN_GAPS = {
    "test_goes_on.py::test_a_server_that_serves_others_meanwhile_is_given_more_time_and_no_more": IN_TURN,
    "test_goes_on.py::test_threads_that_work_beside_a_short_wait_may_yet_hand_its_lock_over[50.0-busy]": UNSEEN,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if (reason := KNOWN_GAPS.get(item.nodeid.removeprefix("tests/triage/"))) is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
