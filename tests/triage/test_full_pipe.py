"""A full pipe to a process of the job: both ends are named, where the reader stands at something else."""

import msgspec
import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Process, Reading, Thread, Wait
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold

CASE = RECORDINGS / "blocked_pipe" / "fires" / "child_that_does_not_read"
WRITER = load_case(CASE).session.root_pids[0]
READER = next(
    one.reading.pid
    for one in load_case(CASE).records
    if isinstance(one.reading, Process) and one.reading.parent_pid == WRITER
)


def judged(wait: Wait | None = None, command: tuple[str, ...] | None = None) -> Verdict:
    """The recorded child that sleeps beside a full pipe, with another wait or another command."""
    pipe = next(one.reading for one in load_case(CASE).records if isinstance(one.reading, Descriptor))
    ends = msgspec.structs.replace(pipe, pid=READER, fd=0, access="r")

    def told(reading: Reading) -> Reading:
        if isinstance(reading, Thread) and reading.pid == READER and wait is not None:
            return msgspec.structs.replace(reading, wait=wait)
        if isinstance(reading, Process) and reading.pid == READER and command is not None:
            return msgspec.structs.replace(reading, command=command, executable="python3.11", python=True)
        return reading

    return retold(CASE, told, ends)


def test_who_writes_and_who_does_not_read_are_both_named_and_that_the_pipe_is_full() -> None:
    """The reader is to blame; what it waits for is told."""
    verdict = judged()

    assert verdict.cause == "blocked_pipe"
    assert "at log (f_pipe.py:8) writes into the full pipe pipe:[" in verdict.summary
    assert f"which pid {READER} (sleep 700) does not read: it sleeps for another" in verdict.summary
    assert [one.worker_pid or one.pid for one in verdict.culprits] == [READER, WRITER]
    assert next(one for one in verdict.evidence if one.witness == "pipe").claim.startswith("is full")


@pytest.mark.parametrize(
    "wait",
    [
        Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=4.0),
        Wait(call="read", number=0, kind="read", fd=0, forever=True),
    ],
)
def test_a_reader_that_naps_or_reads_that_very_pipe_is_not_one_that_does_not_read(wait: Wait) -> None:
    """It will take what is there."""
    assert judged(wait).cause != "blocked_pipe"


def test_a_worker_that_does_not_take_its_tasks_is_a_stuck_worker() -> None:
    """The pipe is the queue of ``multiprocessing`` then."""
    own = next(
        one.reading for one in load_case(CASE).records if isinstance(one.reading, Process) and one.reading.pid == WRITER
    )

    verdict = judged(command=own.command)

    assert verdict.suspect is not None  # it has no stack: only the patience will tell
    assert verdict.suspect.cause == "stuck_worker"
