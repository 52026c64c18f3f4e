"""What ``run`` says of what was found: incidents, and of work only what keeps other ranks waiting."""

import pytest

from perfwatch.processes.channel import Channel
from perfwatch.run.voice import Voice
from perfwatch.verdict import Culprit, Link, Verdict
from perfwatch.watching.news import News
from tests.sessions import verdict


def works(rank: int, at: str, silent_seconds: float | None = 25.0) -> Verdict:
    """Rank 1 waits, for itself or for another one."""
    return verdict(
        state="busy",
        cause="waiting_on_work",
        silent_seconds=silent_seconds,
        culprits=(Culprit(pid=700 + rank, rank=rank, frame=at),),
        wait_chain=(Link(pid=701, rank=1, waits_for="barrier"),),
    )


def heard(*verdicts: Verdict) -> list[int]:
    """Which of them were said."""
    here, there = Channel.pair()
    voice = Voice(here)
    found = []
    for number, one in enumerate(verdicts):
        voice.news(News("verdict", float(number), one.summary, one))
        found += [number] if there.receive() else []
    return found


@pytest.mark.parametrize(
    ("busy", "is_said"),
    [
        (works(0, "score (train.py:7)"), True),
        (works(1, "score (train.py:7)"), False),  # threads of its own
        (works(0, "build (train.py:9)", silent_seconds=None), False),  # nobody knows that they have waited for long
    ],
)
def test_work_is_said_where_other_ranks_wait_for_it(busy: Verdict, is_said: bool) -> None:
    """Who watches the terminal would otherwise see nothing move."""
    assert bool(heard(busy)) == is_said


def test_work_that_comes_back_is_said_once() -> None:
    """An evaluation after each epoch, but not another kind of work."""
    evaluation, export = works(0, "score (train.py:7)"), works(0, "export (train.py:9)")

    assert heard(evaluation, evaluation, works(0, "score (train.py:8)"), export) == [0, 3]
