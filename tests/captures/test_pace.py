"""What a window cost, told by the steps before, in and after it."""

import itertools
import os
import threading
from pathlib import Path

import pytest

from perfwatch.captures.capture import Subject
from perfwatch.captures.pace import Pace, Pacer, as_fast, cost
from perfwatch.processes.armed import read_armed
from perfwatch_probes.agent_folder import AgentFolder
from tests.probes.test_steps import page


def pace(at: float, steps: int, seconds: float, mean: float | None = None) -> Pace:
    """One rank that has made so many steps, a moment ago."""
    return Pace(
        at=at, counts={7: steps}, seconds=seconds, ago_seconds=0.1, mean_seconds=seconds if mean is None else mean
    )


def test_a_window_costs_what_the_job_would_have_made_meanwhile() -> None:
    """Ten steps a second before; two seconds in which five were made, and a second as before."""
    said = cost(pace(0.0, 100, 0.1), pace(10.0, 200, 0.1), pace(12.0, 205, 0.4), pace(13.0, 215, 0.1))

    assert said.startswith("a step took 100 ms before, 400 ms in the window and 100 ms after")
    assert said.endswith("the job lost 1.50 s meanwhile")


def test_a_window_that_changed_nothing_says_so() -> None:
    """Less than a step is no news."""
    said = cost(pace(0.0, 100, 0.1), pace(10.0, 200, 0.1), pace(12.0, 220, 0.1), pace(13.0, 230, 0.1))

    assert said.endswith("the job lost no measurable time meanwhile")


def test_without_steps_the_overhead_is_unknown() -> None:
    """No agent, or a job that stands."""
    still = Pace(at=0.0, counts={}, seconds=None, ago_seconds=None)

    assert "overhead unknown" in cost(still, None, None, still)


@pytest.mark.parametrize(
    ("median", "mean", "back"), [(0.1, 0.1, True), (0.3, 0.17, True), (0.1, 0.4, True), (0.3, 0.4, False)]
)
def test_batches_that_come_in_bursts_are_compared_by_their_mean(median: float, mean: float, back: bool) -> None:
    """Before: mostly 0.1 s, now and then a long one, 0.17 s on the average."""
    assert as_fast(pace(9.0, 300, median, mean), pace(0.0, 100, 0.1, 0.17), 1.2) is back


@pytest.mark.parametrize(
    ("newest", "changed"), [(0.3, True), (0.03, True), (0.12, False)], ids=["slower", "faster", "as before"]
)
def test_a_pace_that_has_just_changed_is_known_from_the_newest_steps(
    tmp_path: Path, newest: float, changed: bool
) -> None:
    """Thirty steps of 0.1 s, then three that take as long as they will from now on."""
    ends = list(itertools.accumulate([0.1] * 30 + [newest] * 3, initial=1.0))
    times = {number: int(at * 1e9) for number, at in enumerate(ends, start=1)}
    (tmp_path / "steps-41").write_bytes(page(times))

    now = Pacer(AgentFolder(tmp_path), (Subject(41, 7),), lambda: ends[-1]).look()

    assert (round(now.seconds or 0.0, 3), now.changed) == (0.1, changed)


def test_pipes_in_the_agents_folder_hold_no_capture(tmp_path: Path) -> None:
    """The job may put there what it likes: it is as if it had made no step, and nothing had been prepared."""
    os.mkfifo(tmp_path / "steps-7")
    os.mkfifo(tmp_path / "armed-nsys")
    found: list[object] = []

    def look() -> None:
        found.extend((Pacer(AgentFolder(tmp_path), (Subject(7, 1),)).look().counts, read_armed(AgentFolder(tmp_path))))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(30)

    assert found == [{}, {}]
