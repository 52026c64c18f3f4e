"""Calls that torch makes of several pieces: the recorders tell of the whole alone whether it is over."""

from typing import Any

import pytest

from perfwatch.triage.ranks.agreement import disagreement
from perfwatch.triage.ranks.point_to_point import exchanging
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch_probes.flight_record import parse
from perfwatch_probes.readings import RecordedGroup
from tests.probes.flight_dumps import call, written
from tests.triage.group_looks import PIDS, case

UNEQUAL = [  # what an all_gather of unequal sizes is: torch keeps no state of the pieces
    call(1, "_broadcast_oop", 2, over=False, size=10),
    call(2, "_broadcast_oop", 2, over=False, size=12),
    call(3, "ALLGATHER_coalesced", 2, size=0),
]


def look(*more: list[dict[str, Any]], enqueued: tuple[int, int] = (2, 2)) -> list[RecordedGroup]:
    """Both ranks' dumps: an all_reduce, and then what each has called."""
    return [
        group
        for rank, calls in enumerate(more)
        for group in parse(written([call(0, "all_reduce", 1), *calls], enqueued[rank], 2), PIDS[rank], rank, "pipe")
    ]


def test_the_pieces_of_a_collective_are_no_different_calls() -> None:
    """They bear one number, and all ranks have them."""
    assert disagreement(case(look(UNEQUAL, UNEQUAL))) is None


@pytest.mark.parametrize("end", ["ALLGATHER_coalesced", "coalesced"])
def test_a_piece_that_is_over_is_not_what_a_rank_waits_in(end: str) -> None:
    """It waits in what it called later, to which the other one has not come."""
    pieces = [*UNEQUAL[:2], call(3, end, 2, size=0)]
    waits = look([*pieces, call(4, "all_reduce", 3, over=False)], pieces, enqueued=(3, 2))
    graph = wait_graph(case(waits, waits))

    assert graph is not None
    assert graph.edges == {0: (1,)}
    assert graph.calls[0].startswith("all_reduce 3")


def test_another_call_in_place_of_such_a_collective_is_still_found() -> None:
    """The whole is compared."""
    found = disagreement(case(look(UNEQUAL, [call(1, "all_reduce", 2, over=False)])))

    assert found is not None
    assert (found.sequence, found.what) == (2, "operation")


def batch(over: bool) -> list[dict[str, Any]]:
    """A send and a receive, and their end, which bears the number of the collective before."""
    return [
        call(1, "send 0->1", 1, 1, over=False, p2p=True),
        call(2, "recv 0<-1", 1, 1, over=False, p2p=True),
        call(3, "coalesced", 1, 1, over=over, size=0),
    ]


def test_the_end_of_a_batch_of_sends_is_not_the_collective_before_it() -> None:
    """Whose number it bears."""
    assert disagreement(case(look(batch(True), batch(True)))) is None
    assert exchanging(case(look(batch(False), batch(False))))
    assert not exchanging(case(look(batch(True), batch(True))))
