"""A library's own threads are servants, and who waits inside of that library waits for just them."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, Process, ProcessUsage, Socket, Stack, Thread, Wait
from tests.sessions import session

PID, LOOP, UPLOADS, UPLOADER, EPOLL, CONNECTION = 700, 701, 750, 751, 6, 7
STANDARD, TRACKER = "/usr/lib/python3.11", "/usr/lib/python3.11/site-packages/wandb"
MODULE = Frame("<module>", "/app/train.py", 99)
EVENT = Frame("wait", f"{STANDARD}/threading.py", 327)
FINISHES = (
    EVENT,
    Frame("result", f"{STANDARD}/concurrent/futures/_base.py", 451),
    Frame("run", f"{TRACKER}/sdk/lib/asyncio_manager.py", 136),
    Frame("finish", f"{TRACKER}/sdk/wandb_run.py", 2200),
)
AT_ITS_LOOP = (
    Frame("select", f"{STANDARD}/selectors.py", 468),
    Frame("run_forever", f"{STANDARD}/asyncio/base_events.py", 607),
    Frame("_main", f"{TRACKER}/sdk/lib/asyncio_manager.py", 200),
    Frame("run", f"{STANDARD}/threading.py", 982),
    Frame("_bootstrap", f"{STANDARD}/threading.py", 1002),
)
FOREVER = Wait(call="futex", number=202, kind="futex", forever=True)
LOOKS_UP = Wait(call="epoll_wait", number=232, kind="poll", fd=EPOLL, remaining_seconds=0.3)
SECONDS = 40


def judged(waits_at: tuple[Frame, ...], uploads: bool = True) -> Verdict:
    """Forty seconds into a wait beside a tracker's event loop, which talks to a service that uploads, or does nothing."""
    history = History()
    history.add(0.0, Process(pid=PID, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    history.add(0.0, Process(pid=UPLOADS, start_ticks=9, parent_pid=PID, name="wandb-core", command=("wandb-core",)))
    peer = Socket(family="tcp", state="ESTABLISHED", local="127.0.0.1:5", peer="127.0.0.1:6", peer_pids=(UPLOADS,),
                  received_ago_seconds=0.1, received_bytes=1000, sent_bytes=10)  # fmt: skip
    history.add(
        0.5, Descriptor(pid=PID, fd=EPOLL, kind="epoll", target="anon_inode:[eventpoll]", watched=(CONNECTION,))
    )
    history.add(0.5, Descriptor(pid=PID, fd=CONNECTION, kind="socket", target="socket:[9]", socket=peer))
    for second in range(1, SECONDS + 1):
        at = float(second)
        history.add(at, Stack(pid=PID, tid=PID, frames=waits_at, samples=20, span_seconds=1.0, thread="MainThread"))
        history.add(at, Stack(pid=PID, tid=LOOP, frames=AT_ITS_LOOP, samples=20, span_seconds=1.0, thread="tracker"))
        for pid, tid, wait, ago, switches, share in (
            (PID, PID, FOREVER, at, 0, 0.0),
            (PID, LOOP, LOOKS_UP, 0.2, 2, 0.003),
            (UPLOADS, UPLOADS, FOREVER, at % 3, 1, 0.001),
            (UPLOADS, UPLOADER, FOREVER, 0.1 if uploads else at, 200 * uploads, 0.18 * uploads),
        ):
            history.add(at, Thread(pid=pid, tid=tid, name="thread", state="S", cpu_seconds=5 + at * share, wait=wait,
                                   run_seconds=5 + at * share, voluntary_switches=50 + second * switches,
                                   ran_ago_seconds=ago))  # fmt: skip
        for pid, work in ((PID, 0), (UPLOADS, int(uploads))):
            history.add(at, ProcessUsage(pid=pid, state="S", threads=2, cpu_seconds=0.18 * at * work, major_faults=0,
                                         minor_faults=0, resident_bytes=0, read_chars=2 * 10**7 * second * work,
                                         written_chars=0))  # fmt: skip
    history.at = float(SECONDS)
    return judge(Case(history, session(root_pids=(PID,))))


@pytest.mark.parametrize("caller", [(MODULE,), ()])
def test_the_end_of_a_run_waits_for_the_trackers_service_while_that_uploads(caller: tuple[Frame, ...]) -> None:
    """Called by the program, or by an exit handler: the tracker's thread leads to its process."""
    verdict = judged((*FINISHES, *caller))

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert verdict.culprits[0].tid == UPLOADS
    assert "wandb-core" in verdict.summary


def test_a_service_that_does_nothing_is_no_work() -> None:
    """Then nothing is said for sure: its thread looks up now and then, and somebody far away may be slow."""
    assert judged((*FINISHES, MODULE), uploads=False).state == "inconclusive"


def test_a_trackers_threads_do_not_help_who_waits_elsewhere() -> None:
    """They bring about nothing of the program's own, whatever they send."""
    verdict = judged((EVENT, Frame("take", "/app/train.py", 31), MODULE))

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
