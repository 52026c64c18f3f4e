"""Groups in which ranks send to each other too: their status counts both kinds of calls, and only collectives are compared."""

import signal
from typing import Any

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.ranks.collectives import standings
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch_probes.flight_record import parse
from perfwatch_probes.readings import Process, ProcessEnded, RecordedGroup
from tests.probes.flight_dumps import call, written
from tests.sessions import session
from tests.triage.group_looks import PIDS, case

FIRST = [call(order, "all_reduce", order + 1) for order in range(5)]
ENDED = 700.0


def sends(rank: int, count: int, over: bool = True) -> list[dict[str, Any]]:
    """A stage of a pipeline after five all_reduces; the one in the middle sends and receives."""
    to = (rank + 1) % 3
    return [call(10 + n, f"send {rank}->{to}", 5, n + 1, over=over or n < count - 1, p2p=True) for n in range(count)]


def dump(rank: int, more: list[dict[str, Any]], status: int, pid: int, origin: str = "pipe") -> list[RecordedGroup]:
    """What one of three ranks has written."""
    return parse(written([*FIRST, *more], status, status - 1, "[0, 1, 2]"), pid, rank, origin, 3.0)


def test_a_stage_that_has_sent_less_is_not_behind() -> None:
    """When NCCL's watchdog has ended a pipeline, nobody is named for the number of sends."""
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=("torchrun",), python=True))
    for rank, count in enumerate((40, 80, 40)):
        history.add(0.0, Process(pid=20 + rank, start_ticks=9, parent_pid=10, name="python", python=True, rank=rank,
                                 command=("python", "train.py"), torch_loaded=True, world_size=3))  # fmt: skip
        history.add(ENDED, ProcessEnded(pid=20 + rank, start_ticks=9, signal=signal.SIGABRT))
        for one in dump(rank, sends(rank, count, over=False), count, 20 + rank, "file"):
            history.add(ENDED + 0.5, one)
    history.add(ENDED + 1.0, ProcessEnded(pid=10, start_ticks=1, exit_code=1))
    history.at = ENDED + 1.0
    verdict = judge(Case(history, session(root_pids=(10,))))

    assert verdict.cause == "killed"
    assert "had not come" not in verdict.summary


def test_who_has_sent_much_has_not_come_to_a_collective_for_it() -> None:
    """Rank 1 has sent 80 times, and is in none."""
    look = [
        *dump(0, [*sends(0, 40), call(200, "all_reduce", 6, 40, over=False)], 6, PIDS[0]),
        *dump(1, sends(1, 80), 80, PIDS[1]),
        *dump(2, [*sends(2, 40), call(200, "all_reduce", 6, 40, over=False)], 6, 702),
    ]
    asked = case(look, look, world=3)
    graph = wait_graph(asked)

    assert graph is not None
    assert graph.edges == {0: (1,), 2: (1,)}
    assert [[seat.rank for seat in one.behind] for one in standings(asked)] == [[1]]


def test_a_pipeline_that_goes_on_sending_does_not_stand() -> None:
    """Whatever its collectives count."""
    looks = [[one for rank in (0, 1, 2) for one in dump(rank, sends(rank, count), count, PIDS.get(rank, 702))]
             for count in (40, 44)]  # fmt: skip

    assert standings(case(*looks, world=3)) == []
    assert wait_graph(case(*looks, world=3)) is None


def test_a_rank_in_a_send_of_that_number_has_not_come_to_a_collective() -> None:
    """Rank 1 has called it, behind a send to rank 2, its sixth as this is the sixth collective: these two wait for each other."""
    last = call(200, "all_reduce", 6, 40, over=False)
    look = [
        *dump(0, [last], 6, PIDS[0]),
        *dump(1, [*sends(1, 6, over=False), last], 6, PIDS[1]),
        *dump(2, [last], 6, 702),
    ]
    graph = wait_graph(case(look, look, world=3))

    assert graph is not None
    assert graph.edges == {0: (1,), 1: (2,), 2: (1,)}
    assert set(graph.cycle) == {1, 2}
