"""What follows from RAS' answers for people, which are all that NCCL before 2.28.7 gives. Recorded on two H200."""

import pytest
from msgspec import structs

from perfwatch.triage.ranks.collectives import growing, standings
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch_probes.nccl_report import parse as parse_report
from tests.probes.ras_answers import ras_answer
from tests.triage.group_looks import PIDS, case, report

OPERATIONS = {
    "2.24.3": "collective 42",
    "2.25.1": "collective 42",
    "2.26.6": "all_reduce 42",
    "2.27.7": "all_reduce 42",
    "2.30.7": "all_reduce 42",
}
VERSIONS = pytest.mark.parametrize("version", OPERATIONS)


@pytest.mark.parametrize(("version", "operation"), OPERATIONS.items())
def test_the_text_of_every_version_names_the_laggard(version: str, operation: str) -> None:
    """Also where NCCL has one counter over all kinds of collectives."""
    hung = case(report("hung.txt", version), report("hung.txt", version))
    graph = wait_graph(hung)

    assert graph is not None
    assert graph.edges == {0: (1,)}
    assert [(seat.rank, seat.pid) for seat in graph.ends] == [(1, 608)]
    assert graph.calls == {0: operation}
    assert not growing(hung)


@VERSIONS
def test_two_texts_of_a_healthy_job_accuse_nobody(version: str) -> None:
    """Level in one or in both, or with counts that grow: whatever the moments were."""
    looks = [report(f"healthy_{look}.txt", version) for look in (1, 2)]
    both = case(*looks)

    assert standings(both) == []
    assert wait_graph(both) is None
    for look in looks:
        assert standings(case(look, look, apart_seconds=1.0)) == []


@VERSIONS
def test_a_group_that_a_newer_text_does_not_name_any_more_has_caught_up(version: str) -> None:
    """It stood, and its ranks are level now: that the text says by its silence."""
    hung, level = report("hung.txt", version), report("healthy_2.txt", "2.25.1")
    caught_up = case(hung, hung, level)

    assert standings(case(hung, hung)) != []
    assert standings(caught_up) == []
    assert not growing(caught_up)


def test_of_a_large_group_the_one_that_is_behind_is_named_from_the_text() -> None:
    """It names one of eight; the seven others are told in one line, and their processes are known by their ranks."""
    head, _, tail = ras_answer("2.26.6_hung.txt").partition("  Rank 0")
    text = head.replace("         2         2         2   R", "         8         8         8   R")
    text += "  7 ranks have launched up to operation 42\n  Rank 1" + tail.partition("  Rank 1")[2]
    look = [
        structs.replace(one, members=tuple(structs.replace(m, local=m.pid is not None) for m in one.members))
        for one in parse_report(text.replace("process 7691", f"process {PIDS[1]}"))
    ]
    graph = wait_graph(case(look, look, world=8))

    assert graph is not None
    assert [(seat.rank, seat.pid) for seat in graph.ends] == [(1, 608)]
    assert graph.edges == {rank: (1,) for rank in (0, 2, 3, 4, 5, 6, 7)}
    assert (graph.seats[0].pid, graph.seats[7].pid) == (607, 707)
