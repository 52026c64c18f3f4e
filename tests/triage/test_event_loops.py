"""A server without visitors and a notebook that is asked nothing rest in a library's event loop: that is no hang.

A training that waits in a loop which a library runs for it alone is one.
"""

from collections.abc import Sequence

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, Process, Socket, Stack, Steps, Thread, Wait
from tests.sessions import session

PID, OTHER, EPOLL, LISTENS, CALLS = 700, 701, 4, 8, 9
STANDARD, PACKAGES = "/usr/lib/python3.11", "/usr/lib/python3.11/site-packages"
LOOP = (
    Frame("select", f"{STANDARD}/selectors.py", 468),
    Frame("_run_once", f"{STANDARD}/asyncio/base_events.py", 1898),
    Frame("run_forever", f"{STANDARD}/asyncio/base_events.py", 607),
    Frame("run", f"{STANDARD}/asyncio/runners.py", 190),
)
MODULE = Frame("<module>", "/app/serve.py", 60)
SERVER = (*LOOP, Frame("run", f"{PACKAGES}/uvicorn/server.py", 67), MODULE)
ANYIO = (*LOOP, Frame("run", f"{PACKAGES}/anyio/_backends/_asyncio.py", 2312), MODULE)
OWN = (*LOOP, MODULE)
INSTALLED = (
    *LOOP,
    Frame("serve", f"{PACKAGES}/oracle/server.py", 42),
    Frame("<module>", "/home/user/venv/bin/oracle", 8),
)


JUDGES = (
    *LOOP,
    Frame("evaluate", f"{PACKAGES}/ragas/evaluation.py", 300),
    Frame("reward", "/app/train.py", 20),
    MODULE,
)
TRAINS = (Frame("backward", f"{PACKAGES}/torch/_tensor.py", 600), Frame("step", "/app/train.py", 12), MODULE)
CELL_TRAINS = (*TRAINS[:2], *LOOP[1:], Frame("start", f"{PACKAGES}/ipykernel/kernelapp.py", 739), MODULE)
BOOTSTRAP = Frame("_bootstrap", f"{STANDARD}/threading.py", 1002)
HEARTBEAT = (Frame("run", f"{PACKAGES}/ipykernel/heartbeat.py", 106), BOOTSTRAP)
TRAINER = (Frame("take", "/app/train.py", 20), Frame("fit", "/app/train.py", 44), BOOTSTRAP)
ACCEPTS = (Frame("accept", f"{STANDARD}/socket.py", 293), Frame("<module>", "/app/hub.py", 9))
AT_REST = Wait(call="epoll_wait", number=232, kind="poll", fd=EPOLL, forever=True)
ON_A_PORT = Socket(family="tcp", state="LISTEN", local="0.0.0.0:8000")
ON_A_FILE = Socket(family="unix", state="LISTEN", local="/tmp/a b;reboot")
ACCEPTING = Wait(call="accept4", number=288, kind="accept", fd=LISTENS, forever=True)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
SECONDS = 120


def judged(
    frames: Sequence[Frame],
    wait: Wait = AT_REST,
    other: Sequence[Frame] = (),
    steps: int = 0,
    before: Sequence[Frame] = (),
    on: int = LISTENS,
    listens: Socket = ON_A_PORT,
) -> Verdict:
    """Of a program that has waited so for two minutes, beside another thread that waits in a futex, where one is given.

    Before: where it was seen until then; on: what its event loop watches; listens: where it waits for visitors.
    """
    history = History()
    history.add(0.0, Process(pid=PID, start_ticks=9, parent_pid=1, name="python", command=("python", "serve.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    history.add(0.5, Descriptor(pid=PID, fd=EPOLL, kind="epoll", target="anon_inode:[eventpoll]", watched=(on,)))
    calls = Socket(
        family="tcp", state="ESTABLISHED", local="10.0.0.1:800", peer="52.1.1.1:443", received_ago_seconds=120.0
    )
    history.add(0.5, Descriptor(pid=PID, fd=CALLS, kind="socket", target="socket:[3]", socket=calls))
    history.add(0.5, Descriptor(pid=PID, fd=LISTENS, kind="socket", target="socket:[2]", socket=listens))
    if steps:
        history.add(0.5, Steps(pid=PID, tid=PID, count=steps, step_ago_seconds=0.5, interval_seconds=(0.5,) * 8))
    if before:
        history.add(0.4, Stack(pid=PID, tid=PID, frames=tuple(before), samples=20, span_seconds=0.1))
    threads = [(PID, frames, wait), *([(OTHER, other, LOCK)] if other else [])]
    for second in range(1, SECONDS + 1):
        for tid, stack, blocked in threads:
            history.add(float(second), Thread(pid=PID, tid=tid, name="python", state="S", cpu_seconds=5.0, wait=blocked,
                                              run_seconds=5.0, voluntary_switches=50, ran_ago_seconds=float(second)))  # fmt: skip
            history.add(float(second), Stack(pid=PID, tid=tid, frames=tuple(stack), samples=20, span_seconds=1.0))
    history.at = float(SECONDS)
    return judge(Case(history, session(mode="attach", root_pids=(PID,))))


@pytest.mark.parametrize("other", [(), HEARTBEAT])
def test_a_server_without_visitors_is_not_hung(other: Sequence[Frame]) -> None:
    """Nor is a kernel between two cells; what is seen is said."""
    verdict = judged(SERVER, other=other)

    assert (verdict.state, verdict.suspect) == ("inconclusive", None)
    assert "event loop of uvicorn: it is at rest, and nothing is asked of it" in verdict.summary


def test_a_server_that_is_installed_rests_as_well() -> None:
    """It is the program itself, and its visitors are as few as those of a library's."""
    verdict = judged(INSTALLED)

    assert (verdict.state, verdict.suspect) == ("inconclusive", None)
    assert "event loop of oracle: it is at rest" in verdict.summary


@pytest.mark.parametrize("frames", [OWN, ANYIO])
def test_a_loop_that_the_program_runs_itself_is_looked_at_as_before(frames: Sequence[Frame]) -> None:
    """Its coroutine waits for something; a library that only runs it keeps no visitors."""
    assert judged(frames).summary.count("at rest") == 0


def test_a_training_that_waits_in_the_loop_of_a_library_which_it_called_is_hung() -> None:
    """A library asks a judge of its answers for it, who is silent; nobody is there to visit it."""
    verdict = judged(JUDGES, before=TRAINS, on=CALLS)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_network")


@pytest.mark.parametrize(
    ("frames", "before", "on"), [(SERVER, TRAINS, LISTENS), (SERVER, CELL_TRAINS, CALLS), (SERVER, (), CALLS)]
)
def test_who_trains_inside_of_the_loop_or_listens_after_training_is_at_rest(
    frames: Sequence[Frame], before: Sequence[Frame], on: int
) -> None:
    """A model that is served when it is trained; a cell of a notebook, a job from a broker; and one that has never trained."""
    verdict = judged(frames, before=before, on=on)

    assert (verdict.state, verdict.suspect) == ("inconclusive", None)
    assert "it is at rest" in verdict.summary


def test_a_thread_of_the_program_that_stands_beside_a_librarys_loop_is_followed() -> None:
    """A request that trains in a thread may hang there."""
    verdict = judged(SERVER, other=TRAINER)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict.culprits[0].tid == OTHER


@pytest.mark.parametrize(("steps", "state"), [(0, "inconclusive"), (300, "hung")])
def test_who_listens_and_has_never_trained_may_be_a_server(steps: int, state: str) -> None:
    """After steps, nobody who connects is missed."""
    verdict = judged(ACCEPTS, ACCEPTING, steps=steps)

    assert verdict.state == state
    assert "blocked_network" in (verdict.cause, verdict.suspect and verdict.suspect.cause)
    assert verdict.next[0] == "ss -tlnp | grep -F 0.0.0.0:8000"


def test_a_socket_that_is_called_as_a_command_is_no_command() -> None:
    """What is to be typed may be pasted into a root shell."""
    verdict = judged(ACCEPTS, ACCEPTING, steps=300, listens=ON_A_FILE)

    assert verdict.next[0] == "ss -xlp | grep -F '/tmp/a b;reboot'"
