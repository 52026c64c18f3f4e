"""What grows while no steps are counted: a graph that a line keeps, or the share of one function; memory grows with both."""

import msgspec
import pytest

from perfwatch_probes.readings import Frame, ProcessUsage, Reading, SourceLine
from tests.recorded import RECORDINGS
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TRAIN, Training
from tests.triage.retold import retold

CASES = RECORDINGS / "regressed"
CASE = CASES / "fires" / "graph_carried_through_the_steps"
MANY_LOSSES = CASES / "lookalike" / "many_losses_of_one_graph"
STEP = (FORWARD, BACKWARD, OPTIMIZER)
SCORES = (Frame("update", "/app/scores.py", 14), Frame("train", TRAIN, 30))


def test_a_graph_that_is_carried_through_the_steps_is_told_with_its_line_and_the_way_out() -> None:
    """No steps are counted in a job that is attached to: the line, its share and the memory tell."""
    verdict = retold(CASE)

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert "p11_reservoir.py:44" in verdict.summary
    assert "detach" in verdict.next[0]


def test_memory_that_rests_means_a_graph_that_is_freed_after_all() -> None:
    """Many losses of one graph need ``retain_graph`` as well."""

    def rests(reading: Reading) -> Reading:
        return (
            msgspec.structs.replace(reading, resident_bytes=1 << 30) if isinstance(reading, ProcessUsage) else reading
        )

    assert retold(CASE, rests).state == "healthy"


def test_backward_passes_that_keep_their_graph_nearly_all_the_time_are_asked_about() -> None:
    """An allocator may have had room for what grows: a healthy training that looks so is told less surely, with the line."""
    verdict = retold(MANY_LOSSES)

    assert (verdict.state, verdict.confidence) == ("healthy", 0.65)
    assert "keep their graph, at <module> (keeps.py:10): does it grow with every step?" in verdict.summary


def test_a_line_that_keeps_no_graph_is_no_growing_graph() -> None:
    """Memory may grow for many reasons, and a large batch has a long backward pass."""

    def frees(reading: Reading) -> Reading:
        if not isinstance(reading, SourceLine):
            return reading
        return msgspec.structs.replace(reading, text=reading.text.replace("retain_graph=True", ""))

    assert retold(CASE, frees).state == "healthy"


def watched(scores: list[int], megabytes: list[int]) -> Training:
    """A job that is attached to: in each twenty seconds so many of ten samples are in the metric, and memory is so large."""
    job = Training(card=False)
    for share, size in zip(scores, megabytes, strict=True):
        for _ in range(4):
            job.goes_on(5, [*[SCORES] * share, *(STEP * 3)[: 10 - share]])
            job.add(
                ProcessUsage(
                    pid=PID,
                    state="R",
                    threads=1,
                    cpu_seconds=job.history.at,
                    major_faults=0,
                    minor_faults=0,
                    resident_bytes=size << 20,
                )
            )
    return job


def test_a_metric_over_everything_since_the_start_makes_steps_longer() -> None:
    """Its share is all that can be seen from outside."""
    verdict = watched([4, 5, 7, 8, 9], [800, 900, 1000, 1100, 1200]).verdict()

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert verdict.culprits[0].frame is not None
    assert verdict.culprits[0].frame.startswith("update (scores.py")


@pytest.mark.parametrize(
    ("scores", "megabytes"),
    [
        ([7, 7, 7, 7, 7], [800, 900, 1000, 1100, 1200]),  # the same part of each step
        ([4, 5, 7, 8, 9], [800, 800, 800, 800, 800]),  # a phase: nothing is kept
        ([2, 2, 2, 2, 9], [800, 900, 1000, 1100, 1200]),  # once: another phase, or a change
        ([9, 8, 7, 5, 4], [800, 900, 1000, 1100, 1200]),  # what else a step does becomes shorter
    ],
)
def test_a_share_that_does_not_grow_all_along_with_memory_is_no_regression(
    scores: list[int], megabytes: list[int]
) -> None:
    """Each half of the evidence alone has benign reasons."""
    assert watched(scores, megabytes).verdict().cause != "regressed"
