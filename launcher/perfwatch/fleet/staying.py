"""Ask again until the verdict is clear: what time may heal is given its patience, as in ``attach``."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO

from perfwatch.fleet.asking import Outcome, Progress, Question, ask
from perfwatch.fleet.engine import Engine
from perfwatch.text import duration, say

AFTER_SECONDS = 1.0  # beyond the moment at which a suspicion is decided
MOST_ROUNDS = 4

Bar = Callable[[IO[str], str], AbstractContextManager[Progress]]


def _bar(stream: IO[str], what: str) -> AbstractContextManager[Progress]:
    from perfwatch.report.progress import bar

    return bar(stream, what)


def until_clear(
    engine: Engine,
    question: Question,
    stream: IO[str],
    wait: Callable[[float], None] = time.sleep,
    bar: Bar = _bar,
) -> Outcome:
    """Ask all hosts; while there is a suspicion that only time decides, wait for that time and ask again.

    Args:
        engine: how hosts are reached.
        question: what is asked.
        stream: where progress and the countdown are shown; Ctrl-C there gives what is known.
        wait: sleeps.
        bar: shows the progress.
    """
    waited = 0.0
    with bar(stream, f"{len(engine.hosts)} hosts are sampled for {duration(question.seconds)}") as advance:
        outcome = ask(engine, question, advance)
    for _ in range(MOST_ROUNDS - 1):
        suspect = outcome.verdict.suspect
        if outcome.verdict.state != "inconclusive" or suspect is None or suspect.decides_in_seconds <= 0:
            break
        pause = max(0.0, suspect.decides_in_seconds - question.seconds) + AFTER_SECONDS
        if waited + pause > question.patience_seconds + AFTER_SECONDS:
            break
        say(stream, f"{outcome.verdict.summary}; decides in {duration(suspect.decides_in_seconds)}")
        waited += pause
        try:
            wait(pause)
            with bar(stream, f"{len(engine.hosts)} hosts are sampled again") as advance:
                outcome = ask(engine, question, advance)
        except KeyboardInterrupt:  # who leaves gets what is known
            break
    return outcome
