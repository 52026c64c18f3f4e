"""How often flight recorders are asked: a pair of questions where ranks rest, then a long silence."""

from collections.abc import Callable

import pytest

from perfwatch.watching.recorder_turns import APART_SECONDS, PAUSE_SECONDS, REST_SECONDS, RecorderTurns


class Asked:
    """Turns that are taken twice a second whenever they are due."""

    def __init__(self) -> None:
        self.now, self.at = 0.0, list[float]()
        self.turns = RecorderTurns(lambda: self.now)

    def run(
        self, seconds: float, rests: Callable[[float], bool], told: Callable[[float], bool] = lambda at: False
    ) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            if self.turns.due(lambda: rests(self.now), told(self.now)):
                self.turns.asked()
                self.at.append(self.now)
            self.now += 0.5


def test_ranks_that_are_seen_at_work_are_never_asked() -> None:
    """However long the suspicion lasts."""
    asked = Asked()
    asked.run(600.0, lambda at: False)

    assert asked.at == []


def test_ranks_that_rest_are_asked_twice_and_then_not_for_a_long_while() -> None:
    """The first time when they are seen at rest again."""
    asked = Asked()
    asked.run(50.0, lambda at: True)

    assert asked.at == [REST_SECONDS, REST_SECONDS + APART_SECONDS]
    asked.run(PAUSE_SECONDS, lambda at: True)
    assert len(asked.at) == 4
    assert asked.at[2] - asked.at[1] >= PAUSE_SECONDS


def test_a_rest_of_a_moment_is_no_reason_to_ask() -> None:
    """One look in which all ranks wait comes and goes with every slow step."""
    asked = Asked()
    asked.run(60.0, lambda at: at % 6.0 < 1.0)

    assert asked.at == []


@pytest.mark.parametrize(("told_at", "before"), [(0.0, []), (3.0, [REST_SECONDS])])
def test_once_a_hang_was_told_nobody_is_asked(told_at: float, before: list[float]) -> None:
    """Not even for the second time."""
    asked = Asked()
    asked.run(300.0, lambda at: True, lambda at: at >= told_at)

    assert asked.at == before


def test_another_rest_within_the_pause_is_not_asked_about() -> None:
    """A job that rests now and then gets no more lines on its standard error for it."""
    asked = Asked()
    asked.run(50.0, lambda at: at % 10.0 < 7.0)

    assert len(asked.at) == 2


def test_a_question_that_nobody_was_there_to_hear_does_not_count() -> None:
    """Ranks that have made no process group yet wrote nothing."""
    asked = Asked()
    asked.run(REST_SECONDS + 0.5, lambda at: True)
    asked.turns.unheard()
    asked.run(20.0, lambda at: True)

    assert len(asked.at) == 3
