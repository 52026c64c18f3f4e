"""A terminal at which nobody types: a serial line to a device, or one that a program made for another that it talks to."""

import pytest

from perfwatch.triage.history import History
from perfwatch.triage.waits.sending import is_typed_at
from perfwatch_probes.readings import Descriptor, Frame, PolledFile, Wait
from tests.triage.rank_looks import FIRST, MODULE, STOPPED, TRAIN, Frames, job, judged, looks, process, stands, uses

READS: Frames = (Frame("readline", TRAIN, 29), Frame("command", TRAIN, 35), MODULE)
BOARD, UNTIL = 300, STOPPED + 400.0


def line(fd: int = 3, target: str = "/dev/pts/0", **told: object) -> Descriptor:
    """An open terminal of the training process."""
    return Descriptor(pid=FIRST, fd=fd, kind="tty", target=target, access="rw", **told)  # type: ignore[arg-type]


def reads(terminal: Descriptor) -> History:
    """A training thread that waits for what comes there."""
    history = job(1)
    history.add(STOPPED, process(BOARD, FIRST, "python board.py"))
    ready = Wait(call="pselect6", number=270, kind="poll", polled=(PolledFile(fd=terminal.fd, events=1),), forever=True)
    stands(history, FIRST, READS, ready, UNTIL)
    for at in looks(STOPPED, UNTIL):
        history.add(at, terminal)
    return history


OWN = [line(0), line(0, "/dev/ttyS0"), line(7, "/dev/tty"), line(7, controlling=True)]
OTHERS = [
    line(),
    line(controlling=False, other_side=(BOARD,)),
    line(3, "/dev/ttyUSB0"),
    line(3, "/dev/ttyACM0"),
    line(3, "/dev/ptmx"),
]


@pytest.mark.parametrize("terminal", OWN)
def test_somebody_types_at_stdin_and_at_the_controlling_terminal(terminal: Descriptor) -> None:
    """Under whatever number and name it was opened."""
    verdict = judged(reads(terminal), STOPPED + 8.0)

    assert is_typed_at(terminal)
    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_input")


@pytest.mark.parametrize("terminal", OTHERS)
def test_at_any_other_terminal_a_device_or_a_program_answers_and_may_take_its_time(terminal: Descriptor) -> None:
    """A robot rests for minutes; only much later is it called hung, and never that somebody should type."""
    history = reads(terminal)

    states = [judged(history, STOPPED + waited).state for waited in (8.0, 80.0, 250.0)]
    late = judged(history, STOPPED + 320.0)

    assert states == ["inconclusive"] * 3
    assert (late.state, late.cause, late.confidence) == ("hung", "blocked_network", 0.7)
    assert terminal.target in late.summary


def test_a_program_at_the_other_side_that_works_is_waited_for() -> None:
    """It computes, in whatever thread."""
    history = reads(line(controlling=False, other_side=(BOARD,)))
    uses(history, BOARD, 0.5, 0.0, UNTIL)

    verdict = judged(history, STOPPED + 100.0)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
