"""Pipes and waits: who of a job may read or write at the other end, and which readings are of the wait that a thread is in."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, PolledFile, Process, ProcessEnded, Stack, Thread, Wait
from tests.sessions import session
from tests.triage.rank_looks import FOR_EVER, Frames

TRAINER, CHILD, LOADER, PEER = 10, 20, 21, 30
ENDS = Wait(call="wait4", number=61, kind="child", child_pid=CHILD, forever=True)
WRITES = Wait(call="write", number=1, kind="write", fd=1, forever=True)
READS = Wait(call="read", number=0, kind="read", fd=5, forever=True)
STANDARD = "/usr/lib/python3.11/"
STARTED: Frames = (Frame("wait", f"{STANDARD}subprocess.py", 1264), Frame("main", "/app/train.py", 9))
REPORTS: Frames = (Frame("report", "/app/child.py", 3),)
TAKES: Frames = (Frame("take", "/app/feed.py", 3), Frame("main", "/app/train.py", 9))
NOW = 90.0


def job(*pids: tuple[int, int, str]) -> History:
    """Processes of a job: pid, parent and name; the trainer has torch, and a loader has inherited it."""
    history = History(at=NOW)
    for pid, parent, name in pids:
        python = name != "sh"
        history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name=name,
                                 command=("python", "train.py") if python else ("sh",), python=python,
                                 torch_loaded=pid == TRAINER or name == "pt_data_worker"))  # fmt: skip
    return history


def stands(history: History, pid: int, frames: Frames, wait: Wait, fd: Descriptor | None = None) -> None:
    """A process that has been in one call since the beginning."""
    for second in range(1, int(NOW) + 1):
        at = float(second)
        history.add(at, Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                               voluntary_switches=9, ran_ago_seconds=at, wait=wait))  # fmt: skip
        if frames:
            history.add(at, Stack(pid=pid, tid=pid, frames=frames, samples=5, span_seconds=0.9))
        if fd is not None:
            history.add(at, fd)


def judged(history: History, pid: int = TRAINER) -> Verdict:
    """What is said of the job of this process."""
    return judge(Case(history, session(root_pids=(pid,))))


@pytest.mark.parametrize(
    ("holders", "writing", "awaited"),
    [
        ((TRAINER, LOADER), True, "pid 10 to read"),  # the trainer should read, its worker only holds the end
        ((TRAINER, LOADER), False, "pid 10, 21 to write"),  # as long as a worker holds it nobody hears of the end
        ((LOADER,), True, "pid 21 to read"),  # nobody else could read
        ((PEER, LOADER), True, "pid 30, 21 to read"),  # no parent of the worker holds it: it was given to it
    ],
)
def test_a_loader_that_inherited_the_read_end_is_nobody_to_wait_for(
    holders: tuple[int, ...], writing: bool, awaited: str
) -> None:
    """The trainer's child writes into its stdout; the trainer's DataLoader worker was forked after it was started."""
    history = job((TRAINER, 1, "python"), (CHILD, TRAINER, "python"), (LOADER, TRAINER, "pt_data_worker"),
                  (PEER, TRAINER, "sh"))  # fmt: skip
    readers, writers = (holders, (CHILD,)) if writing else ((CHILD,), holders)
    pipe = Descriptor(pid=CHILD, fd=1 if writing else 5, kind="pipe", target="pipe:[9]", inode=9,
                      access="w" if writing else "r", readers=readers, writers=writers)  # fmt: skip
    stands(history, TRAINER, STARTED, ENDS)
    stands(history, CHILD, REPORTS, WRITES if writing else READS, pipe)
    for pid in (LOADER, PEER):
        stands(history, pid, (), FOR_EVER)
    verdict = judged(history)

    assert verdict.wait_chain[1].pid == CHILD
    assert verdict.wait_chain[1].waits_for.startswith(f"{awaited} ")
    assert verdict.state == "hung"


@pytest.mark.parametrize(
    ("waiting", "culprits"), [((LOADER,), [PEER]), ((LOADER, PEER), [LOADER, PEER])], ids=["one_of_two", "all"]
)
def test_whose_own_queue_is_full_owes_nothing_to_an_empty_one(waiting: tuple[int, ...], culprits: list[int]) -> None:
    """Forked readers hold each other's pipes; where all of them wait for room, one of their queues does not get through."""
    history = job((TRAINER, 1, "python"), (LOADER, TRAINER, "python"), (PEER, TRAINER, "python"))
    pipe = Descriptor(pid=TRAINER, fd=5, kind="pipe", target="pipe:[9]", inode=9, access="r", readers=(TRAINER,),
                      writers=(LOADER, PEER))  # fmt: skip
    stands(history, TRAINER, TAKES, READS, pipe)
    for pid in (LOADER, PEER):
        put = Frame("put", f"{STANDARD}multiprocessing/queues.py", 89)
        inner = put if pid in waiting else Frame("read", "/app/feed.py", 89)
        stands(history, pid, (inner, Frame("reader", "/app/feed.py", 30)), FOR_EVER)

    assert [one.worker_pid for one in judged(history).culprits] == culprits


PID = 7
PAUSES: Frames = (Frame("Search.wait_for_slot", "/app/search.py", 22),)
TALKS: Frames = (
    Frame("Popen.communicate", f"{STANDARD}subprocess.py", 1209),
    Frame("Search.run", "/app/search.py", 18),
)
PAUSE = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=8.0)
TALK = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=3, events=1),), forever=True)
POLL = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=3, events=1),), remaining_seconds=0.05)
REAP = Wait(call="wait4", number=61, kind="child", child_pid=0, forever=True)
PIPE = Descriptor(pid=PID, fd=3, kind="pipe", target="pipe:[1]", readers=(PID,), writers=(8,))


def look(at: float, wait: Wait, ran_at: float) -> tuple[float, Thread]:
    """The main thread of the process, blocked."""
    return at, Thread(
        pid=PID, tid=PID, name="python", state="S", cpu_seconds=1.0, ran_ago_seconds=at - ran_at, wait=wait
    )


def stack(frames: Frames, seconds: float = 2.0) -> Stack:
    """What the main thread of the process was seen in, ten times a second."""
    return Stack(pid=PID, tid=PID, frames=frames, samples=int(10 * seconds), span_seconds=seconds)


def program(pid: int, parent: int) -> Process:
    """A Python process."""
    return Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=("python",), python=True,
                   torch_loaded=pid == PID)  # fmt: skip


def watched(at: float, *looks: tuple[float, Thread]) -> History:
    """A moment after these looks at the only process."""
    history = History(at=at)
    history.add(0.0, program(PID, 1))
    for when, thread in looks:
        history.add(when, thread)
    return history


def test_stacks_of_an_earlier_wait_say_nothing_of_this_one() -> None:
    """It was seen to pause for eight seconds; it has run since and waits for something else: where, nobody has seen."""
    history = watched(20.5, look(15.0, PAUSE, 8.0), look(19.5, PAUSE, 8.0), look(20.2, TALK, 19.9))
    for at in (12.0, 16.0, 20.0):
        history.add(at, stack(PAUSES))
    (link,) = judged(history, PID).wait_chain

    assert link.frame is None
    assert link.silent_seconds == pytest.approx(0.6)
    assert "sleep" not in link.waits_for


def test_few_samples_of_this_wait_outweigh_many_of_an_earlier_one() -> None:
    """It talked to its child until a moment ago: two samples show where it is now."""
    history = watched(11.0, look(7.5, TALK, 5.0), look(10.8, PAUSE, 8.0))
    history.add(7.9, stack(TALKS, 5.0))
    history.add(8.3, stack(PAUSES, 0.2))
    (link,) = judged(history, PID).wait_chain

    assert (link.frame, link.waits_for) == ("wait_for_slot (search.py:22)", "the end of its sleep in 8.0 s")


def test_looks_at_the_clock_leave_the_wait_the_same() -> None:
    """A poll that ends and begins again all the time is one wait: what was seen of it before the last look counts."""
    history = watched(20.2, *(look(at, POLL, at - 0.02) for at in (17.0, 18.0, 19.0, 20.0)))
    history.add(19.5, stack(TALKS))
    (link,) = judged(history, PID).wait_chain

    assert link.frame == "run (search.py:18)"
    assert link.silent_seconds == pytest.approx(2.7)


@pytest.mark.parametrize(("read_at", "known"), [(7.0, False), (20.1, True)])
def test_a_descriptor_counts_only_where_it_was_read_within_the_wait(read_at: float, known: bool) -> None:
    """Number 3 was the pipe of one child, then nothing, and is the pipe of the next."""
    history = watched(20.5, look(7.0, TALK, 5.0), look(15.0, PAUSE, 8.0), look(20.2, TALK, 19.9))
    history.add(read_at, PIPE)

    assert ("pipe:[1]" in judged(history, PID).wait_chain[0].waits_for) is known


@pytest.mark.parametrize(("ran_at", "known"), [(8.5, False), (5.0, True)])
def test_a_pipe_of_one_that_ended_counts_until_its_reader_goes_on(ran_at: float, known: bool) -> None:
    """The child ended at 8 s: a reader that has run since may wait for the next child at the same number."""
    history = watched(9.5, look(6.0, TALK, 5.0), look(9.0, TALK, ran_at))
    history.add(6.5, PIPE)
    history.add(8.0, ProcessEnded(pid=8, start_ticks=8, parent_pid=PID))

    assert ("pipe:[1]" in judged(history, PID).wait_chain[0].waits_for) is known


@pytest.mark.parametrize(("ran_at", "state"), [(9.0, "inconclusive"), (5.0, "hung")])
def test_nobody_waits_for_a_child_that_had_ended_before(ran_at: float, state: str) -> None:
    """A wait that began after the end was known is for another child, which was not seen yet."""
    history = watched(11.0, look(10.0, REAP, ran_at))
    history.add(2.0, program(8, PID))
    history.add(8.0, ProcessEnded(pid=8, start_ticks=8, parent_pid=PID))
    verdict = judged(history, PID)

    assert (verdict.state, verdict.cause) == (state, "dead_worker" if state == "hung" else None)
    assert [one.worker_pid for one in verdict.culprits] == ([8] if state == "hung" else [])
