"""What moves does not hang: a thread that ran since, bytes that arrive for it, and a process that moves data."""

from dataclasses import replace

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Descriptor, Frame, Socket, Stack, Thread, Wait
from tests.recorded import RECORDINGS, load_case
from tests.training import level
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    process,
    runs,
    stands,
    uses,
)

DOWNLOADS = RECORDINGS / "downloading"
SILENT = DOWNLOADS / "lookalike" / "bytes_on_another_connection"
TRICKLES = DOWNLOADS / "fires" / "busy_trickling_download"
TAKES: Frames = (Frame("take", TRAIN, 9), MODULE)
ARRIVES: Frames = (Frame("forward", TORCH + "nn/modules/linear.py", 5), Frame("train", TRAIN, 6), MODULE)


@pytest.mark.parametrize(("ended_at", "state"), [(20.1, "hung"), (20.3, "inconclusive"), (25.0, "inconclusive")])
def test_samples_from_before_a_thread_came_to_rest_do_not_speak_against_that(ended_at: float, state: str) -> None:
    """It last ran at 20.0 s: of 0.2 s of samples that ended a little later some were taken on its way."""
    history = job(1, trained=False)
    stands(history, FIRST, (), FOR_EVER, 40.0, since=20.0)
    history.add(ended_at, Stack(pid=FIRST, tid=FIRST, frames=ARRIVES, samples=20, span_seconds=0.2))
    for at in (21.0, 39.9):
        history.add(at, Stack(pid=FIRST, tid=FIRST, frames=TAKES, samples=20, span_seconds=0.5))

    assert judged(history, 40.0).state == state


SPINS: Frames = (Frame("spin", "/app/ext.py", 9), Frame("run", LIB + "threading.py", 982))
ASKS_FOR_THE_GIL = Wait(call="futex", number=202, kind="futex", forever=False, remaining_seconds=0.003)


@pytest.mark.parametrize(("run_ms_per_look", "state"), [(15.8, "hung"), (40.0, "inconclusive")])
@pytest.mark.parametrize("met_running", [0, 3, 2])
def test_a_thread_that_asks_for_the_gil_in_vain_does_not_move(
    run_ms_per_look: float, state: str, met_running: int
) -> None:
    """On a slow machine each of its 200 looks a second costs 0.14 ms; a thread that gets its turn runs for longer.

    Each so many-th time it is met on a CPU, between two such waits. Another thread keeps the GIL all the while.
    """
    history = job(1, trained=False)
    for look in range(200):
        at = 20.0 + 0.6 * (look + 1)
        on_cpu = bool(met_running) and look % met_running == 0
        history.add(at, Thread(pid=FIRST, tid=FIRST, name="python", state="R" if on_cpu else "S", cpu_seconds=0.0,
                               wait=None if on_cpu else ASKS_FOR_THE_GIL, voluntary_switches=114 * look,
                               run_seconds=look * run_ms_per_look / 1e3, ran_ago_seconds=0.003))  # fmt: skip
        history.add(at, Thread(pid=FIRST, tid=FIRST + 1, name="python", state="R", cpu_seconds=at, run_seconds=at,
                               voluntary_switches=0, read_calls=0, write_calls=0))  # fmt: skip
        history.add(at, Stack(pid=FIRST, tid=FIRST, frames=TAKES, samples=5, span_seconds=0.4, owns_gil=False))
        history.add(at, Stack(pid=FIRST, tid=FIRST + 1, frames=SPINS, samples=5, span_seconds=0.4, owns_gil=True))
    verdict = judged(history, 139.0)

    assert verdict.state == state
    assert (verdict.cause == "held_gil") is (state == "hung")


def test_bytes_on_another_connection_do_not_hide_a_wait_for_a_silent_server() -> None:
    """The suspicion stands, with its countdown, while the other connection gets 40 bytes a second."""
    verdict = diagnose(load_case(SILENT), expected_of(SILENT).at)

    assert verdict.suspect is not None
    assert verdict.suspect.cause == "blocked_network"
    assert "downloading" not in {one.cause for one in verdict.findings}


def test_a_download_is_surer_where_the_thread_was_seen_to_wait_for_its_bytes() -> None:
    """Without a look at the thread's waits, bytes on any socket of its process count, for less."""
    recording, at = load_case(TRICKLES), expected_of(TRICKLES).at
    seen = tuple(one for one in recording.records if not isinstance(one.reading, Thread))

    sure, unsure = diagnose(recording, at), diagnose(replace(recording, records=seen), at)

    assert (sure.cause, level(sure.confidence)) == ("downloading", "certain")
    assert (unsure.cause, level(unsure.confidence)) == ("downloading", "medium")


EVENT_LOOP: Frames = (
    Frame("select", LIB + "selectors.py", 468),
    Frame("_run_once", LIB + "asyncio/base_events.py", 1900),
    Frame("run_forever", LIB + "asyncio/base_events.py", 600),
    Frame("fetch", TRAIN, 9),
    MODULE,
)


FETCHES: Frames = (
    Frame("readinto", LIB + "socket.py", 706),
    Frame("read", LIB + "http/client.py", 466),
    Frame("next_chunk", TRAIN, 9),
    MODULE,
)
REDUCES: Frames = (
    Frame("all_reduce", TORCH + "distributed/distributed_c10d.py", 2800),
    Frame("step", TRAIN, 14),
    MODULE,
)


@pytest.mark.parametrize(("comes_back", "cause"), [(True, "straggling_rank"), (False, "downloading")])
def test_what_a_rank_fetches_for_each_step_is_no_download(comes_back: bool, cause: str) -> None:
    """The other rank is woken in its collective again and again; or it waits there all the while for a file that comes."""
    history, until = job(2, trained=False), 60.0
    runs(
        history,
        FIRST + 1,
        (FETCHES,),
        20.0,
        until,
        share=0.02,
        wait=Wait(call="recvfrom", number=45, kind="recv", fd=5),
    )
    if comes_back:
        runs(history, FIRST, (REDUCES,), 20.0, until, share=0.02, wait=FOR_EVER)
    else:
        stands(history, FIRST, REDUCES, FOR_EVER, until, 20.0)
    for at in looks(20.0, until):
        socket = Socket(family="tcp", state="ESTABLISHED", peer="52.0.0.1:80", received_bytes=int(at * 1e5),
                        received_ago_seconds=0.1)  # fmt: skip
        history.add(at, Descriptor(pid=FIRST + 1, fd=5, kind="socket", target="socket:[5]", inode=5, socket=socket))

    assert judged(history, until).cause == cause


@pytest.mark.parametrize(
    ("arrives_on", "cause"), [(5, "downloading"), (6, "downloading"), (7, None), (None, None)], ids=str
)
def test_an_event_loop_waits_on_whatever_it_watches(arrives_on: int | None, cause: str | None) -> None:
    """The wait is on the epoll instance, which watches connections 5 and 6; the bytes come on one of three."""
    history, until = job(1, trained=False), 60.0
    waits = Wait(call="epoll_wait", number=232, kind="poll", fd=3)
    runs(history, FIRST, (EVENT_LOOP,), 20.0, until, share=0.02, wait=waits)
    uses(history, FIRST, 0.02, 0.0, until, 20.0)
    for at in looks(20.0, until):
        history.add(at, Descriptor(pid=FIRST, fd=3, kind="epoll", target="anon_inode:[eventpoll]", watched=(5, 6)))
        for fd in (5, 6, 7):
            moves = fd == arrives_on
            socket = Socket(family="tcp", state="ESTABLISHED", local=f"10.0.0.1:{fd}", peer="52.0.0.1:443", sent_bytes=10,
                            received_bytes=int(1e6 * (at - 20.0)) if moves else 9,
                            received_ago_seconds=0.1 if moves else at - 20.0)  # fmt: skip
            history.add(
                at, Descriptor(pid=FIRST, fd=fd, kind="socket", target=f"socket:[{fd}]", inode=fd, socket=socket)
            )

    assert judged(history, until).cause == cause


@pytest.mark.parametrize(
    ("left", "waited", "state"),
    [(1.1, 50.0, "inconclusive"), (1.1, 62.0, "hung"), (4.4, 62.0, "hung"), (200.0, 62.0, "inconclusive")],
)
def test_a_timer_of_an_event_loop_that_has_fired_for_the_hang_timeout_is_no_promise(
    left: float, waited: float, state: str
) -> None:
    """A coroutine logs every two seconds, and the one that trains awaits a task that has died. One long sleep is given its time."""
    history, began, until = job(1, trained=False), 20.0, 100.0
    waits = Wait(call="epoll_wait", number=232, kind="poll", fd=3, remaining_seconds=left)
    if left < waited:
        rate = 0.5  # a line to the log each time
        runs(
            history,
            FIRST,
            (EVENT_LOOP,),
            began,
            until,
            share=0.0005,
            wait=waits,
            switches_per_second=rate,
            calls_per_second=rate,
        )
    else:
        stands(history, FIRST, EVENT_LOOP, waits, until, began)
    uses(history, FIRST, 0.0005, 0.0, until, began)
    for at in looks(began, until):
        history.add(at, Descriptor(pid=FIRST, fd=3, kind="epoll", target="anon_inode:[eventpoll]", watched=()))

    assert judged(history, began + waited).state == state


STARTS: Frames = (Frame("wait", LIB + "subprocess.py", 1264), Frame("main", TRAIN, 12), MODULE)
CHILD = 300


@pytest.mark.parametrize(("state", "said"), [("S", ("busy", "waiting_on_work")), ("T", ("hung", "stopped"))])
def test_a_child_that_was_stopped_hangs_whatever_else_moves(state: str, said: tuple[str, str]) -> None:
    """Its other threads copy 30 MB a second; no byte wakes a process that was stopped."""
    history, until = job(1), STOPPED + 60.0
    history.add(STOPPED, process(CHILD, FIRST, "rclone copy"))
    child_ends = Wait(call="wait4", number=61, kind="child", child_pid=CHILD, forever=True)
    stands(history, FIRST, STARTS, child_ends, until)
    for at in looks(STOPPED, until):
        history.add(at, Thread(pid=CHILD, tid=CHILD, name="rclone", state=state, cpu_seconds=1.0, run_seconds=1.0,
                               voluntary_switches=3, ran_ago_seconds=at - STOPPED,
                               wait=None if state == "T" else FOR_EVER))  # fmt: skip
    runs(history, CHILD, (), STOPPED, until, tid=CHILD + 1, share=0.05)
    uses(history, CHILD, 0.25, 3e7, until)
    verdict = judged(history, until)

    assert (verdict.state, verdict.cause) == said
