"""A backward pass that takes all the time is told as a growing graph only where its line keeps the graph and memory grows."""

import msgspec

from perfwatch_probes.readings import ProcessUsage, Reading, SourceLine
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASES = RECORDINGS / "regressed"
CASE = CASES / "fires" / "graph_carried_through_the_steps"
MANY_LOSSES = CASES / "lookalike" / "many_losses_of_one_graph"


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
