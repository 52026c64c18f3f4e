"""Whether ranks rest, which is when their flight recorders are asked: told by recorded jobs, sick and healthy."""

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.ranks.at_rest import at_rest
from tests.recorded import RECORDINGS, load_case

MOMENTS = 24


def rests(name: str, at: float) -> bool:
    """Judged at a moment of a recorded case."""
    whole = load_case(RECORDINGS / name)
    return at_rest(Case(History(whole.records, at), whole.session, whole.events))


@pytest.mark.parametrize(
    "name",
    [
        "mismatched_collective/fires/mismatched_collective-nccl-order",
        "mismatched_collective/fires/mismatched_collective-nccl-sizes",
        "mismatched_collective/fires/nccl-sizes-four",
        "mismatched_collective/fires/one_call_more-nccl",
        "stalled_collective/fires/stalled_collective-nccl",
        "stuck_kernel/lookalike/both_ranks_receive-nccl",
    ],
)
def test_ranks_that_wait_for_each_other_rest(name: str) -> None:
    """Before the hang is told: what the recorders say comes in time."""
    at = expected_of(RECORDINGS / name).at

    assert rests(name, at)


@pytest.mark.parametrize(
    "name",
    [
        "mismatched_collective/lookalike/pipeline-nccl",
        "stalled_collective/lookalike/busy_rank_zero_evaluates-nccl",
        "stalled_collective/lookalike/straggling_rank_sleep-nccl",
        "wedged_collective/lookalike/busy_rank_zero_saves-nccl",
        "exposed_communication/fires/exposed_communication-nccl",
        "straggling_rank/fires/straggling_rank-nccl",
        "straggling_rank/fires/nccl-four",
    ],
)
def test_no_moment_of_a_job_that_goes_on_is_taken_for_rest(name: str) -> None:
    """While it starts, makes steps, evaluates or saves, and while one rank is late."""
    end = load_case(RECORDINGS / name).end

    assert [at for number in range(1, MOMENTS + 1) if rests(name, at := end * number / MOMENTS)] == []
