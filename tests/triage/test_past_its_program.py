"""An exit handler has no ``<module>`` below it; that alone does not say that training is over."""

from dataclasses import replace

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Process, Reading, Stack
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "hung_at_exit" / "fires" / "hung_at_exit-atexit"
PID = 2653  # of the recorded process
TRAINED = Stack(pid=PID, tid=PID, frames=(Frame("<module>", "/home/user/train.py", 9),))


def judged(*before: Stack, executable: str = "python3.11", script: str = "train.py") -> Verdict:
    """A recorded exit handler that waits for ever, in a process that was started otherwise and seen in these stacks before."""
    recording, at = load_case(CASE), expected_of(CASE).at

    def started(reading: Reading) -> Reading:
        if not isinstance(reading, Process):
            return reading
        return msgspec.structs.replace(reading, executable=executable, command=(executable, script))

    records = tuple(msgspec.structs.replace(one, reading=started(one.reading)) for one in recording.records)
    earlier = tuple(Record(-30.0, stack) for stack in before)
    return diagnose(replace(recording, records=earlier + records), at)


def test_a_program_that_was_seen_below_its_module_is_past_it() -> None:
    """Who comes when it is over already has only what is missing from the stack: less sure."""
    assert judged().cause == judged(TRAINED).cause == "hung_at_exit"
    assert judged().confidence < 0.8 < judged(TRAINED).confidence


@pytest.mark.parametrize(
    ("before", "executable", "script"),
    [((), "simulator", "train.py"), ((TRAINED,), "simulator", "train.py"), ((TRAINED,), "python3.11", "tr\ufffdn.py")],
)
def test_what_is_called_from_c_or_from_frames_that_cannot_be_read_is_not(
    before: tuple[Stack, ...], executable: str, script: str
) -> None:
    """A program in C imports a module and calls its function; py-spy leaves out the frames of a file whose name is not UTF-8."""
    verdict = judged(*before, executable=executable, script=script)

    assert verdict.cause == "deadlocked_locks"
    assert all(one.cause != "hung_at_exit" for one in verdict.findings)
