"""Where a training thread went on since its last stack, nobody knows yet what it waits for: its next stack is awaited."""

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, PolledFile, Process, Stack, Thread, Wait
from tests.sessions import session

PID, HELPER = 700, 701
OTHER, ANSWERS, QUESTIONS = 4, 5, 6
LIMIT_SECONDS = 1800.0  # a shorter one would end the wait soon
FIT = (Frame("fit", "/app/train.py", 20), Frame("<module>", "/app/train.py", 60))
ASKED = (Frame("serve", "/app/helper.py", 8), Frame("<module>", "/app/helper.py", 30))


READS = Wait(call="read", number=0, kind="read", fd=QUESTIONS, forever=True)


def polling(fd: int, seconds: float) -> Wait:
    """What ends by itself after so many seconds more."""
    return Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=fd, events=1),), remaining_seconds=seconds)


def verdict(last_stack: float, at: float, went_on: float) -> Verdict:
    """A program that waits up to half an hour for a helper, after it waited for something else.

    The helper waits for questions, and nobody else holds their pipe any more.
    """
    history = History(at=at)
    for pid, parent in ((PID, 1), (HELPER, PID)):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=parent, name="python", command=("python", "x.py"),
                                 python=True, torch_loaded=pid == PID))  # fmt: skip
    answers = Descriptor(pid=PID, fd=ANSWERS, kind="pipe", target="pipe:[1]", writers=(HELPER,), readers=(PID,))
    questions = Descriptor(
        pid=HELPER, fd=QUESTIONS, kind="pipe", target="pipe:[2]", writers=(HELPER,), readers=(HELPER,)
    )
    history.add(went_on + 0.3, answers)
    history.add(0.5, questions)
    for second in range(1, int(at) + 1):
        on = second >= went_on
        wait = polling(ANSWERS, went_on + LIMIT_SECONDS - second) if on else polling(OTHER, went_on - second)
        history.add(second, Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=5.0, wait=wait, run_seconds=5.0,
                                   voluntary_switches=50 + on, ran_ago_seconds=second - went_on * on))  # fmt: skip
        history.add(second, Thread(pid=HELPER, tid=HELPER, name="python", state="S", cpu_seconds=1.0, wait=READS,
                                   run_seconds=1.0, voluntary_switches=9, ran_ago_seconds=second + 30.0))  # fmt: skip
        if second <= last_stack:
            history.add(second, Stack(pid=PID, tid=PID, frames=FIT, samples=20, span_seconds=1.0))
        history.add(second, Stack(pid=HELPER, tid=HELPER, frames=ASKED, samples=20, span_seconds=1.0))
    return judge(Case(history, session(mode="attach", root_pids=(PID,))))


def test_a_hang_is_not_told_from_the_stack_before_last() -> None:
    """It may have come from a wait that was over to one that ends in a moment."""
    assert verdict(last_stack=18.0, at=20.0, went_on=18.5).state != "hung"


def test_a_hang_is_told_once_the_stack_is_of_now() -> None:
    """The same wait, seen by a new stack: or by none, where none comes for as long as one may take."""
    assert verdict(last_stack=20.0, at=20.0, went_on=1.0).state == "hung"
    assert verdict(last_stack=3.0, at=20.0, went_on=4.0).state == "hung"
