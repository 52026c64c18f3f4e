"""What the wait graph does not know yet: tests that state a truth and fail. One that passes fails the suite, so that its line goes."""

import pytest

IN_TURN = "a loop that hands nothing over for minutes is taken for work"
UNSEEN = "the graph has no claim of this releaser: the wait is open, and nothing is said of it"
KNOWN_GAPS = {
    "test_asking.py::test_who_asks_for_what_a_child_that_works_may_write_waits_for_it_perhaps[work1-line0]": UNSEEN,
    "test_asking.py::test_who_asks_for_what_a_child_that_works_may_write_waits_for_it_perhaps[work1-line1]": UNSEEN,
    "test_data_loading.py::test_to_turn_ones_own_part_into_bytes_is_work_and_no_wait_for_the_others[pickle]": UNSEEN,
    "test_goes_on.py::test_a_server_that_serves_others_meanwhile_is_given_more_time_and_no_more": IN_TURN,
    "test_goes_on.py::test_threads_that_work_beside_a_short_wait_may_yet_hand_its_lock_over[50.0-busy]": UNSEEN,
    "test_native_waits.py::test_bytes_on_the_connections_of_native_threads_are_a_download": UNSEEN,
    "test_questions.py::test_a_writer_outside_of_the_job_that_works_will_send_when_it_is_done[loops2-0.9-hung]": IN_TURN,
    "test_ranks_at_work.py::test_a_loop_that_waits_for_a_condition_or_moves_no_data_hangs_after_five_times_the_patience"
    "[history2-stuck_worker]": IN_TURN,
    "test_ranks_at_work.py::test_a_loop_that_waits_for_a_condition_or_moves_no_data_hangs_after_five_times_the_patience"
    "[history3-stuck_worker]": IN_TURN,
    "test_servants.py::test_the_end_of_a_run_waits_for_the_trackers_service_while_that_uploads[caller0]": UNSEEN,
    "test_servants.py::test_the_end_of_a_run_waits_for_the_trackers_service_while_that_uploads[caller1]": UNSEEN,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if (reason := KNOWN_GAPS.get(item.nodeid.removeprefix("tests/triage/"))) is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
