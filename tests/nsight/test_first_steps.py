"""``run --arm ncu`` says what it costs, from the first steps of the job itself."""

from pathlib import Path

import pytest

from perfwatch.processes.armed import write_armed
from perfwatch.run.first_steps import PATIENCE_SECONDS, FirstSteps
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.watching.summary import Tally
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.readings import GpuActivity, Steps
from tests.sessions import session


def tally(steps: int) -> Tally:
    """A process that makes steps of 62 ms."""
    counted = Tally(None)
    counted.append(0.0, [Steps(pid=700, tid=700, count=steps, interval_seconds=(0.062,) * min(steps, 160))])
    return counted


def looked_at(seconds: float, resident: float = 0.25) -> Case:
    """A card on which kernels run for a quarter of the time."""
    history = History()
    for number in range(round(seconds / 0.2) + 1):
        history.add(number * 0.2, GpuActivity(uuid="GPU-0", interval_seconds=0.2, graphics=resident, dram=0.1))
    history.at = seconds
    return Case(history, session(), [])


@pytest.fixture
def armed(tmp_path: Path) -> FirstSteps:
    """Of a job that was started under ncu."""
    write_armed(tmp_path, "ncu", {"ncu": "/opt/ncu"})
    return FirstSteps(AgentFolder(tmp_path))


def test_the_steps_and_the_time_of_kernels_bound_what_ncu_costs(armed: FirstSteps) -> None:
    """And it is said once."""
    said = armed.told(tally(40), lambda: looked_at(6.0))

    assert "under ncu a step takes 62.0 ms (p50 of 30 steps)" in said
    assert "kernels run for 25% of the time" in said
    assert "takes 15.5 ms at least, and ncu costs at most 46.5 ms a step" in said
    assert armed.told(tally(80), lambda: looked_at(9.0)) == ""


def test_warm_up_counts_for_nothing(armed: FirstSteps) -> None:
    """The first steps load kernels, and ncu looks at each."""
    assert armed.told(tally(29), lambda: looked_at(6.0)) == ""


def test_a_card_that_does_not_tell_leaves_the_pace_after_a_while(armed: FirstSteps) -> None:
    """No share is made up."""
    blind = History()
    assert armed.told(tally(40), lambda: Case(blind, session(), [])) == ""

    blind.at = PATIENCE_SECONDS
    assert armed.told(tally(600), lambda: Case(blind, session(), [])) == (
        "under ncu a step takes 62.0 ms (p50 of 590 steps), until the job ends"
    )


def test_nothing_is_reckoned_from_a_card_that_two_ranks_share(armed: FirstSteps) -> None:
    """Only the pace is told, and that after a while."""
    two = tally(40)
    two.append(0.0, [Steps(pid=701, tid=701, count=40, interval_seconds=(0.062,) * 40)])

    assert armed.told(two, lambda: looked_at(6.0)) == ""
    assert armed.told(two, lambda: looked_at(6.0 + PATIENCE_SECONDS)) == (
        "under ncu a step takes 62.0 ms (p50 of 30 steps), until the job ends"
    )


def test_a_job_without_ncu_is_told_nothing(tmp_path: Path) -> None:
    """Nor is its history asked for."""

    def refuse() -> Case:
        raise AssertionError

    assert FirstSteps(AgentFolder(tmp_path)).told(tally(40), refuse) == ""
