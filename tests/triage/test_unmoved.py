"""How long an answer about process groups holds: as long as whoever could change it is seen to stand."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.ranks.collectives import standings
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch_probes.readings import Frame, Reading, Stack, Steps
from tests.sessions import session
from tests.triage.group_looks import PIDS, case, records, report

ASKED = 3.0  # the second look of two


def stack(pid: int, line: int, samples: int = 4) -> Stack:
    """A training thread at one line."""
    frames = (Frame("step", "/home/user/train.py", line),)
    return Stack(pid=pid, tid=pid, thread="MainThread", frames=frames, samples=samples)


def later(asked: Case, at: float, *readings: Reading) -> Case:
    """The same job at a later moment, looked at every ten seconds until a second before it."""
    since = asked.at
    for reading in readings:
        for ago in range(1, max(2, int(at - since)), 10):
            asked.history.add(at - ago, reading)
    asked.history.at = at
    return Case(asked.history, session())


STANDING = [stack(pid, 9) for pid in PIDS.values()]


@pytest.mark.parametrize("at", [15.0, 300.0])
def test_an_answer_holds_while_every_rank_is_seen_to_stand(at: float) -> None:
    """However long ago the service was asked: a hang that was told does not grow doubtful by itself."""
    (one,) = standings(later(case(report("hung.json"), report("hung.json")), at, *STANDING))
    graph = wait_graph(later(case(records("hung"), records("hung")), at, *STANDING))

    assert one.seconds == pytest.approx(at)
    assert graph is not None
    assert graph.seconds == pytest.approx(at)


def test_how_old_the_looks_are_is_said() -> None:
    """They agreed over 3 s, and that was 12 s ago."""
    asked = later(case(report("hung.json"), report("hung.json")), 15.0, *STANDING)
    (one,) = standings(asked)

    assert one.unchanged(asked.at) == "unchanged for 3.0 s when last asked, 12.0 s ago, and no rank has moved since"


def test_a_step_made_since_ends_it() -> None:
    """The rank went on: what was counted before is not about now."""
    step = Steps(pid=PIDS[1], tid=PIDS[1], count=8, step_ago_seconds=5.0)
    (one,) = standings(later(case(report("hung.json"), report("hung.json")), 15.0, *STANDING, step))

    assert one.seconds == pytest.approx(ASKED)


def test_a_thread_that_has_moved_since_ends_it() -> None:
    """After 40 s an answer is then about nothing any more."""
    moved = [*STANDING, stack(PIDS[1], 10)]

    assert standings(later(case(report("hung.json"), report("hung.json")), 15.0, *moved))[0].seconds == ASKED
    assert standings(later(case(report("hung.json"), report("hung.json")), 60.0, *moved)) == []


@pytest.mark.parametrize("lines", [2, 12, 30])
def test_a_thread_that_goes_through_many_lines_in_turn_ends_it(lines: int) -> None:
    """Each of them is as rare as a torn stack, and all together are not."""
    asked = case(report("hung.json"), report("hung.json"))
    for at in range(4, 60):
        asked.history.add(float(at), stack(PIDS[0], 9))
        asked.history.add(float(at), stack(PIDS[1], 10 + at % lines))
    asked.history.at = 60.0

    assert standings(Case(asked.history, session())) == []


def test_a_torn_stack_now_and_then_does_not() -> None:
    """A nonblocking dump tears some 3 % of them."""
    asked = case(report("hung.json"), report("hung.json"))
    for at in range(4, 60):
        asked.history.add(float(at), stack(PIDS[0], 9))
        asked.history.add(float(at), stack(PIDS[1], at if at % 20 == 0 else 9))
    asked.history.at = 60.0

    assert standings(Case(asked.history, session()))[0].seconds == pytest.approx(60.0)


def test_a_rank_that_nobody_has_looked_at_since_ends_it() -> None:
    """Nobody knows whether it moved."""
    asked = later(case(report("hung.json"), report("hung.json")), 15.0, STANDING[0])

    assert standings(asked)[0].seconds == pytest.approx(ASKED)


def test_one_dump_of_each_recorder_suffices_where_nothing_has_moved_since() -> None:
    """The second question would bring the same answer, and another line on the job's standard error."""
    assert wait_graph(later(case(records("hung")), 3.5, STANDING[0])) is None
    graph = wait_graph(later(case(records("hung")), 3.5, *STANDING))

    assert graph is not None
    assert graph.edges == {0: (1,)}
