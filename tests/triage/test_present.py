"""Which readings are of the wait that a thread is in, and which of an earlier one."""

import pytest

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import dominant, motion
from perfwatch.triage.present import open_file
from perfwatch.triage.roles.job import read_job
from perfwatch.triage.waits.node import node_of, silence
from perfwatch.triage.waits.workers import child
from perfwatch_probes.readings import Descriptor, Frame, PolledFile, Process, ProcessEnded, Stack, Thread, Wait

PAUSES = (Frame("Search.wait_for_slot", "/app/search.py", 22),)
TALKS = (
    Frame("Popen.communicate", "/usr/lib/python3.11/subprocess.py", 1209),
    Frame("Search.run", "/app/search.py", 18),
)
PAUSE = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=8.0)
TALK = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=3, events=1),), forever=True)
POLL = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=3, events=1),), remaining_seconds=0.05)
REAP = Wait(call="wait4", number=61, kind="child", child_pid=0, forever=True)
PIPE = Descriptor(pid=7, fd=3, kind="pipe", target="pipe:[1]", readers=(7,), writers=(8,))


def look(at: float, wait: Wait, ran_at: float) -> tuple[float, Thread]:
    """The main thread of process 7, blocked."""
    return at, Thread(pid=7, tid=7, name="python", state="S", cpu_seconds=1.0, ran_ago_seconds=at - ran_at, wait=wait)


def program(pid: int, parent: int) -> Process:
    """A Python process."""
    return Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=("python",), python=True)


def stack(frames: tuple[Frame, ...], seconds: float = 2.0) -> Stack:
    """What the main thread of process 7 was seen in, ten times a second."""
    return Stack(pid=7, tid=7, frames=frames, samples=int(10 * seconds), span_seconds=seconds)


def history(at: float, *looks: tuple[float, Thread]) -> History:
    """A moment after these looks."""
    made = History(at=at)
    for when, thread in looks:
        made.add(when, thread)
    return made


def test_stacks_of_an_earlier_wait_say_nothing_of_this_one() -> None:
    """It was seen to pause for eight seconds; it has run since and waits for something else: where, nobody has seen."""
    seen = history(20.5, look(15.0, PAUSE, 8.0), look(19.5, PAUSE, 8.0), look(20.2, TALK, 19.9))
    for at in (12.0, 16.0, 20.0):
        seen.add(at, stack(PAUSES))

    node = node_of(seen, read_job(seen), 7)

    assert node.stack is None
    assert motion(seen, 7, 7).samples == 0
    assert silence(seen, node) == pytest.approx(0.6)


def test_few_samples_of_this_wait_outweigh_many_of_an_earlier_one() -> None:
    """It talked to its child until a moment ago: two samples show where it is now."""
    seen = history(11.0, look(7.5, TALK, 5.0), look(10.8, PAUSE, 8.0))
    seen.add(7.9, stack(TALKS, 5.0))
    seen.add(8.3, stack(PAUSES, 0.2))

    now = dominant(seen, 7, 7)

    assert now is not None
    assert now.reading.frames == PAUSES


def test_looks_at_the_clock_leave_the_wait_the_same() -> None:
    """A poll that ends and begins again all the time is one wait: what was seen of it before the last look counts."""
    seen = history(20.2, *(look(at, POLL, at - 0.02) for at in (17.0, 18.0, 19.0, 20.0)))
    seen.add(19.5, stack(TALKS))

    assert motion(seen, 7, 7).steady_share == 1.0


@pytest.mark.parametrize(("read_at", "known"), [(7.0, False), (20.1, True)])
def test_a_descriptor_counts_only_where_it_was_read_within_the_wait(read_at: float, known: bool) -> None:
    """Number 3 was the pipe of one child, then nothing, and is the pipe of the next."""
    seen = history(20.5, look(7.0, TALK, 5.0), look(15.0, PAUSE, 8.0), look(20.2, TALK, 19.9))
    seen.add(read_at, PIPE)

    assert (open_file(seen, 7, 7, 3) is not None) is known


@pytest.mark.parametrize(("ran_at", "known"), [(8.5, False), (5.0, True)])
def test_a_pipe_of_one_that_ended_counts_until_its_reader_goes_on(ran_at: float, known: bool) -> None:
    """The child ended at 8 s: a reader that has run since may wait for the next child at the same number."""
    seen = history(9.5, look(6.0, TALK, 5.0), look(9.0, TALK, ran_at))
    seen.add(6.5, PIPE)
    seen.add(8.0, ProcessEnded(pid=8, start_ticks=8, parent_pid=7))

    assert (open_file(seen, 7, 7, 3) is not None) is known


@pytest.mark.parametrize(("ran_at", "end"), [(9.0, "unknown"), (5.0, "dead")])
def test_nobody_waits_for_a_child_that_had_ended_before(ran_at: float, end: str) -> None:
    """A wait that began after the end was known is for another child, which was not seen yet."""
    seen = history(11.0, look(10.0, REAP, ran_at))
    seen.add(1.0, program(7, 1))
    seen.add(2.0, program(8, 7))
    seen.add(8.0, ProcessEnded(pid=8, start_ticks=8, parent_pid=7))
    job = read_job(seen)

    found = child(seen, job, node_of(seen, job, 7))[2]

    assert found is not None
    assert found.kind == end
