"""A backward pass that takes all the time is told as a growing graph only where its line keeps the graph and memory grows."""

from pathlib import Path

import msgspec

from perfwatch.probes.readings import ProcessUsage, Reading, SourceLine
from tests.triage.retold import retold

CASE = Path(__file__).parent / "recordings" / "regressed" / "fires" / "graph_carried_through_the_steps"


def test_a_graph_that_is_carried_through_the_steps_is_told_with_its_line_and_the_way_out() -> None:
    """No steps are counted in a job that is attached to: the line, its share and the memory tell."""
    verdict = retold(CASE)

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert "p11_reservoir.py:44" in verdict.summary
    assert "detach" in verdict.next[0]


def test_memory_that_rests_means_a_graph_that_is_freed_after_all() -> None:
    """Two losses of one graph need ``retain_graph`` as well."""

    def rests(reading: Reading) -> Reading:
        return (
            msgspec.structs.replace(reading, resident_bytes=1 << 30) if isinstance(reading, ProcessUsage) else reading
        )

    assert retold(CASE, rests).state == "healthy"


def test_a_line_that_keeps_no_graph_is_no_growing_graph() -> None:
    """Memory may grow for many reasons, and a large batch has a long backward pass."""

    def frees(reading: Reading) -> Reading:
        if not isinstance(reading, SourceLine):
            return reading
        return msgspec.structs.replace(reading, text=reading.text.replace("retain_graph=True", ""))

    assert retold(CASE, frees).state == "healthy"
