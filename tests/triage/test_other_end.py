"""An environment of a vectorised one is gone, and its siblings, forked before it, hold the pipe that was made for it."""

from functools import partial

import msgspec

from perfwatch_probes.readings import Process, ProcessEnded, Reading
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASES = RECORDINGS / "dead_worker" / "fires"
KILLED, LEFT = CASES / "environment_among_pipes_made_ahead", CASES / "environment_that_left_quietly"


def started(reading: Reading, ticks: int) -> Reading:
    """A process that has ended by now was started so many ticks later."""
    if (isinstance(reading, Process) and not reading.command) or isinstance(reading, ProcessEnded):
        return msgspec.structs.replace(reading, start_ticks=reading.start_ticks + ticks)
    return reading


earlier, later = partial(started, ticks=-6_000), partial(started, ticks=6_000)


def test_the_one_that_is_gone_is_named_and_not_the_siblings_that_inherited_its_pipe() -> None:
    """They wait for their next step, each on a pipe of its own."""
    for case, how in ((KILLED, "killed by SIGKILL"), (LEFT, "exited with code 0")):
        verdict = retold(case)

        assert (verdict.state, verdict.cause) == ("hung", "dead_worker")
        assert how in verdict.summary
        assert "_worker" not in str(verdict.culprits)


def test_a_child_that_ended_as_it_should_long_before_is_not_the_one() -> None:
    """It was not forked with those that hold the pipe."""
    assert retold(LEFT, earlier).cause != "dead_worker"


def test_a_child_that_was_killed_and_is_younger_than_those_that_hold_the_pipe_is_not_the_one() -> None:
    """None of them has inherited anything of it."""
    assert retold(KILLED).cause == "dead_worker"
    assert retold(KILLED, later).cause != "dead_worker"
