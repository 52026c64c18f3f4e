"""An environment of a vectorised one is gone, and its siblings, forked before it, hold the pipe that was made for it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.probes.readings import Process, Reading
from perfwatch.recording import load
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.verdict import Verdict

CASES = Path(__file__).parent / "recordings" / "dead_worker" / "fires"
KILLED, LEFT = CASES / "environment_among_pipes_made_ahead", CASES / "environment_that_left_quietly"


def judged(case: Path, changed: Callable[[Reading], Reading] = lambda reading: reading) -> Verdict:
    """A recorded case, with some of its readings told otherwise."""
    recording = load(case)
    records = tuple(msgspec.structs.replace(one, reading=changed(one.reading)) for one in recording.records)
    return diagnose(replace(recording, records=records), expected_of(case).at)


def earlier(reading: Reading) -> Reading:
    """A process that has ended by now was started a minute before all others."""
    if isinstance(reading, Process) and not reading.command:
        return msgspec.structs.replace(reading, start_ticks=reading.start_ticks - 6_000)
    return reading


def test_the_one_that_is_gone_is_named_and_not_the_siblings_that_inherited_its_pipe() -> None:
    """They wait for their next step, each on a pipe of its own."""
    for case, how in ((KILLED, "killed by SIGKILL"), (LEFT, "exited with code 0")):
        verdict = judged(case)

        assert (verdict.state, verdict.cause) == ("hung", "dead_worker")
        assert how in verdict.summary
        assert "_worker" not in str(verdict.culprits)


def test_a_child_that_ended_as_it_should_long_before_is_not_the_one() -> None:
    """It was not forked with those that hold the pipe."""
    assert judged(LEFT, earlier).cause != "dead_worker"
