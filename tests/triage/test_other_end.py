"""Pipes of ``multiprocessing`` whose ends forked siblings have inherited: who is waited for, when one of the children is no more."""

import msgspec
import pytest

from perfwatch.probes.readings import Descriptor, Frame, Process, ProcessEnded, Socket, Stack, Thread, Wait
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.verdict import Verdict
from tests.sessions import session

LIB, TRAIN = "/usr/lib/python3.11/", "/app/rollouts.py"
MAIN, FIRST, SECOND, KILLED, LAST = 700, 701, 702, 703, 704
END, OWN = 900, 910  # the end that the killed one served, and the first number of the ends that the others serve
RECEIVES = (
    Frame("Connection._recv", LIB + "multiprocessing/connection.py", 395),
    Frame("_ConnectionBase.recv", LIB + "multiprocessing/connection.py", 250),
)
STEPS = (*RECEIVES, Frame("step", TRAIN, 61), Frame("<module>", TRAIN, 103))
SERVES = (
    *RECEIVES,
    Frame("serve", TRAIN, 31),
    Frame("BaseProcess.run", LIB + "multiprocessing/process.py", 108),
    Frame("<module>", TRAIN, 103),
)
WORKS = (Frame("physics", TRAIN, 20), *SERVES[2:])
READS = Wait(call="read", number=0, kind="read", fd=10, forever=True)
UNTIL = 20
KILL = ProcessEnded(pid=KILLED, start_ticks=KILLED, zombie=True, signal=9, name="python", parent_pid=MAIN)


def judged(holders: tuple[int, ...], end: ProcessEnded | None = KILL, last: int | None = OWN + LAST) -> Verdict:
    """A trainer waits for its third environment, while the others wait for it; ``last``: which end the last one reads (None: it works)."""
    history = History()
    for pid in (MAIN, FIRST, SECOND, KILLED, LAST):
        history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=MAIN if pid > MAIN else 1, name="python",
                                 command=("python", TRAIN), python=True, torch_loaded=True))  # fmt: skip
    if end is not None:
        history.add(0.1, end)
    alive = (MAIN, FIRST, SECOND, LAST) if end is not None else (MAIN, FIRST, SECOND, KILLED, LAST)
    for second in range(1, UNTIL + 1):
        for pid in alive:
            works = pid == LAST and last is None
            history.add(float(second), Thread(pid=pid, tid=pid, name="python", state="R" if works else "S", voluntary_switches=50,
                                              cpu_seconds=5.0 + works * second, run_seconds=5.0 + works * second,
                                              wait=None if works else READS, ran_ago_seconds=0.0 if works else 20.0 + second))  # fmt: skip
            frames = STEPS if pid == MAIN else WORKS if works else SERVES
            history.add(float(second), Stack(pid=pid, tid=pid, frames=frames, samples=5, span_seconds=0.5))
            inode = {MAIN: END + 1, LAST: last or 0}.get(pid, OWN + pid)
            far, held_by = (END, holders) if pid == MAIN else (inode + 1000, (MAIN, pid))
            socket = Socket(family="unix", state="ESTABLISHED", peer_inode=far, peer_pids=held_by)
            history.add(float(second), Descriptor(pid=pid, fd=10, kind="socket", target=f"socket:[{inode}]", access="rw",
                                                  inode=inode, socket=socket))  # fmt: skip
    history.at = float(UNTIL)
    return judge(Case(history, session(root_pids=(MAIN,))))


@pytest.mark.parametrize("holders", [(MAIN, LAST), (LAST,), (MAIN,)])
def test_a_killed_environment_is_named_and_not_the_sibling_that_inherited_its_end(holders: tuple[int, ...]) -> None:
    """The sibling waits for its own next command; whether the trainer has closed that end itself says nothing."""
    verdict = judged(holders)

    assert (verdict.state, verdict.cause) == ("hung", "dead_worker")
    assert verdict.culprits[0].worker_pid == KILLED
    assert f"process {KILLED} is gone (killed by SIGKILL)" in verdict.summary


def test_a_sibling_that_reads_that_very_end_is_the_one_that_is_waited_for() -> None:
    """It waits for the trainer, and the trainer for it: another one's end has nothing to do with it."""
    verdict = judged((MAIN, LAST), last=END)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")


def test_a_sibling_at_work_may_yet_answer() -> None:
    """Who holds the end and computes is not known to have merely inherited it."""
    assert judged((MAIN, LAST), last=None).cause != "dead_worker"


def test_a_child_that_was_forked_later_never_had_the_end() -> None:
    """A process that was forked before holds it: the end was made for that one, or for an older one."""
    assert judged((MAIN, FIRST)).cause != "dead_worker"


def test_a_helper_that_ended_as_it_should_is_not_missed() -> None:
    """It may have done anything else; the two that live wait for each other."""
    verdict = judged((MAIN, LAST), msgspec.structs.replace(KILL, zombie=False, signal=None, exit_code=0))

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")


def test_without_one_that_ended_two_that_wait_for_each_other_are_a_deadlock() -> None:
    """As before: commands may go one way and answers another."""
    verdict = judged((MAIN, LAST), None)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
