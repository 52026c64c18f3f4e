"""A program that writes into its full stderr while its parent waits for it at another descriptor, and what is not that."""

from functools import partial

import msgspec

from perfwatch_probes.readings import Descriptor, PolledFile, Process, Reading, Thread
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold

CASE = RECORDINGS / "blocked_pipe" / "fires" / "stderr_that_an_actor_does_not_read"
TRAINER, ACTOR, SIMULATOR = 24524, 24533, 24541
ACTORS_END = 15  # any number that the actor may have for its end of the simulator's stderr


judged = partial(retold, CASE)


def test_who_writes_and_who_should_read_are_both_named_with_the_way_out() -> None:
    """The actor reads the simulator's stdout only."""
    verdict = judged()

    assert [culprit.worker_pid for culprit in verdict.culprits] == [SIMULATOR, ACTOR]
    assert "child process 24541 at <module> (sim.py:17) is blocked writing to its stderr" in verdict.summary
    assert "that pid 24533 does not read; pid 24533 at step (env.py:18) waits for pid 24541" in verdict.summary
    assert "stderr=subprocess.DEVNULL" in verdict.next[0]


def test_a_parent_that_waits_for_both_outputs_reads_them() -> None:
    """``communicate()`` polls stdout and stderr: what is written is taken."""

    def polls(reading: Reading) -> Reading:
        if not isinstance(reading, Thread) or reading.pid != ACTOR or reading.wait is None or reading.wait.fd != 13:
            return reading
        polled = (PolledFile(fd=13, events=1), PolledFile(fd=ACTORS_END, events=1))
        wait = msgspec.structs.replace(reading.wait, call="poll", kind="poll", fd=None, polled=polled)
        return msgspec.structs.replace(reading, wait=wait)

    recording = load_case(CASE)
    stderr = [one.reading for one in recording.records if isinstance(one.reading, Descriptor)]
    its = next(one for one in stderr if (one.pid, one.fd) == (SIMULATOR, 2))
    verdict = judged(polls, msgspec.structs.replace(its, pid=ACTOR, fd=ACTORS_END, access="r"))

    assert verdict.cause != "blocked_pipe"


def test_a_pipe_to_another_program_is_not_the_actors_to_read() -> None:
    """The simulator was started by somebody else: the actor merely inherited an end of the pipe."""

    def elsewhere(reading: Reading) -> Reading:
        if isinstance(reading, Process) and reading.pid == SIMULATOR:
            return msgspec.structs.replace(reading, parent_pid=TRAINER)
        return reading

    assert judged(elsewhere).cause != "blocked_pipe"
