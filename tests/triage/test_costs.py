"""What a machine does to a job is a verdict only where it costs time; else it is a note beside one."""

import pytest

from perfwatch.triage.slowness import NOTED
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Cgroup
from tests.training import BACKWARD, FORWARD, OPTIMIZER, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]


def throttled(periods_share: float, seconds_per_second: float, *, delayed: float) -> Verdict:
    """A job with a quota: in so many of its ten periods a second it is stopped, and its thread waits so long for a CPU."""
    job = Training(card=False)
    for _ in range(27):
        job.goes_on(1.5, STEPS, run_share=1.0 - delayed, delay_share=delayed)
        at = job.history.at
        job.add(
            Cgroup(path="/", version=2, quota_cpus=8.0, periods=round(10 * at), throttled_periods=round(10 * at * periods_share),
                   throttled_seconds=at * seconds_per_second),
        )  # fmt: skip
    return job.verdict()


@pytest.mark.parametrize(
    ("periods_share", "seconds_per_second", "delayed", "confidence"),
    [
        (0.9, 0.6, 0.6, 0.97),
        (0.3, 0.003, 0.003, NOTED),  # a millisecond in each of them
        (0.3, 1.6, 0.02, NOTED),  # summed over sixteen CPUs, and hardly ever the one of the training
    ],
)
def test_a_quota_is_blamed_for_the_time_that_it_takes_and_not_for_the_periods_that_it_touches(
    periods_share: float, seconds_per_second: float, delayed: float, confidence: float
) -> None:
    """Of 100 ms, one or sixty."""
    said = throttled(periods_share, seconds_per_second, delayed=delayed)
    found = {one.cause: one.confidence for one in said.findings} | {said.cause: said.confidence}

    assert found["throttled_cpu"] == confidence
    assert (said.cause == "throttled_cpu") is (confidence > NOTED)
