"""Sockets, terminals and stdin: which end a thread waits for, and what can still arrive."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Level, Verdict
from perfwatch_probes.readings import (
    Descriptor,
    Frame,
    PolledFile,
    Process,
    ProcessUsage,
    Reading,
    Socket,
    SourceLine,
    Stack,
    Steps,
    Thread,
    Wait,
)
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
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
from tests.triage.retold import retold

# Sockets and terminals: a thread that waits for somebody to take what it sends, or for an answer; and terminals at which nobody types.


CASE = RECORDINGS / "stalled_collective" / "fires" / "collector_that_reads_no_more"
COLLECTOR = "127.0.0.1:9831"


def test_a_full_connection_is_told_by_what_was_not_taken() -> None:
    """A handler of ``logging`` sends each record to a collector that stopped reading."""
    verdict = diagnose(load_case(CASE), expected_of(CASE).at)
    shown = next(one for one in verdict.evidence if one.witness == "socket")

    assert f"waits for {COLLECTOR} to take what it sends" in verdict.summary
    assert shown.claim == f"{COLLECTOR} does not take what is sent"
    assert shown.observed.startswith("4,152,434 bytes not taken (Send-Q), last sent 7")
    assert verdict.next[0] == f"ss -tnp | grep {COLLECTOR}"


def test_of_a_single_rank_the_same_is_a_blocked_network() -> None:
    """It stands among the findings of the case."""
    found = next(
        one for one in diagnose(load_case(CASE), expected_of(CASE).at).findings if one.cause == "blocked_network"
    )

    assert f"waits for {COLLECTOR} to take what it sends, which has read nothing for 6" in found.summary
    assert found.alternatives[0].refuted_by == "no byte was read meanwhile"
    assert "pid 22159, which holds the other end" in found.next[1]


PEER = "10.0.0.2:80"


def connected(wait: Wait, **counted: int) -> Verdict:
    """A training thread that has been in this wait for 79 s, on two connections over which nothing goes."""
    history, until = job(1), STOPPED + 80.0
    stands(history, FIRST, (Frame("upload", TRAIN, 29), MODULE), wait, until)
    for at in looks(STOPPED, until):
        ago = at - STOPPED
        for fd in (5, 6):
            socket = Socket(family="tcp", state="ESTABLISHED", local=f"10.0.0.1:{fd}", peer=PEER, received_ago_seconds=ago,
                            sent_ago_seconds=ago, **counted)  # type: ignore[arg-type]  # fmt: skip
            history.add(
                at, Descriptor(pid=FIRST, fd=fd, kind="socket", target=f"socket:[{fd}]", inode=fd, socket=socket)
            )
    return judged(history, until - 0.5)


@pytest.mark.parametrize(
    ("wait", "sends"),
    [
        (Wait(call="sendto", number=44, kind="send", fd=5), True),
        (Wait(call="poll", number=7, kind="poll", polled=(PolledFile(5, 4),)), True),
        (Wait(call="poll", number=7, kind="poll", polled=(PolledFile(5, 1),)), False),
        (Wait(call="poll", number=7, kind="poll", polled=(PolledFile(5, 5),)), False),
        (Wait(call="poll", number=7, kind="poll", polled=(PolledFile(5, 1), PolledFile(6, 4))), False),
        (Wait(call="recvfrom", number=45, kind="recv", fd=5), False),
    ],
)
def test_who_sends_is_told_by_the_call_or_by_what_it_polls_for(wait: Wait, sends: bool) -> None:
    """A socket with a timeout is polled first; who waits for an answer as well waits for that."""
    verdict = connected(wait, send_queue_bytes=9_000)
    words = "to take what it sends, which has read nothing" if sends else "which has sent nothing"

    assert (verdict.state, verdict.cause) == ("hung", "blocked_network")
    assert words in verdict.summary
    assert [one.claim for one in verdict.evidence if one.witness == "socket"] == [
        f"{PEER} does not take what is sent" if sends else f"nothing arrives from {PEER}"
    ]


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        (
            {"send_queue_bytes": 9_000, "retransmits": 3},
            "9,000 bytes not taken (Send-Q), sent again 3 times, last sent 80 s ago",
        ),
        ({"send_queue_bytes": 9_000}, "9,000 bytes not taken (Send-Q), last sent 80 s ago"),
        ({}, "last sent 80 s ago"),
    ],
)
def test_what_was_sent_again_speaks_for_a_network_that_loses_it(counted: dict[str, int], words: str) -> None:
    """A collector that merely reads no more confirms all that comes."""
    verdict = connected(Wait(call="sendto", number=44, kind="send", fd=5), **counted)
    (shown,) = [one.observed for one in verdict.evidence if one.witness == "socket"]

    assert shown.startswith(words)


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

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_input")


@pytest.mark.parametrize("terminal", OTHERS)
def test_at_any_other_terminal_a_device_or_a_program_answers_and_may_take_its_time(terminal: Descriptor) -> None:
    """A robot rests for minutes; only much later is it called hung, and never that somebody should type."""
    history = reads(terminal)

    states = [judged(history, STOPPED + waited).state for waited in (8.0, 80.0, 250.0)]
    late = judged(history, STOPPED + 320.0)

    assert states == ["inconclusive"] * 3
    assert (late.state, late.cause, late.confidence) == ("hung", "blocked_network", 0.65)
    assert terminal.target in late.summary


def test_a_program_at_the_other_side_that_works_is_waited_for() -> None:
    """It computes, in whatever thread."""
    history = reads(line(controlling=False, other_side=(BOARD,)))
    uses(history, BOARD, 0.5, 0.0, UNTIL)

    verdict = judged(history, STOPPED + 100.0)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")


# A silent server of the job's own is named with its line, unless it waits for visitors.


SILENT_SERVER_CASE = RECORDINGS / "blocked_network" / "fires" / "server_of_its_own_that_polls"
SERVER = 28673
ACCEPTS = Wait(call="accept4", number=288, kind="accept", fd=3, forever=True)


def accepts(reading: Reading) -> Reading:
    """The server waits for somebody who connects."""
    if isinstance(reading, Thread) and reading.pid == SERVER:
        return msgspec.structs.replace(reading, wait=ACCEPTS)
    return reading


def test_the_line_at_which_the_server_of_the_job_stands_is_told() -> None:
    """It polls in a loop of the program's own."""
    assert retold(SILENT_SERVER_CASE).summary.endswith(f"there pid {SERVER} is at take (q10_distill.py:42)")


def test_one_that_waits_for_visitors_owes_nothing_for_all_that_is_known() -> None:
    """Another thread, or nobody, may have the connection."""
    assert f"there pid {SERVER}" not in retold(SILENT_SERVER_CASE, accepts).summary


# A terminal that takes no more (Ctrl-S) is told from one at which somebody should type.


CASES = RECORDINGS / "blocked_pipe" / "fires"


@pytest.mark.parametrize(
    ("case", "writer"),
    [
        ("held_terminal", "pid 14227 at train (train.py:16) writes to the terminal /dev/pts/0 (stdout)"),
        (
            "held_terminal_behind_a_lock",
            "thread watch of pid 14685 at watch (train2.py:17) writes to the terminal /dev/pts/0",
        ),
    ],
)
def test_who_writes_to_a_held_terminal_is_named_with_the_key_that_lets_it_go_on(case: str, writer: str) -> None:
    """Nobody is asked to type an answer; in the second case the training thread waits for the lock that the writer holds."""
    verdict = diagnose(load_case(CASES / case), expected_of(CASES / case).at)

    assert verdict.summary.startswith(writer)
    assert "accepts no more output: Ctrl-S was pressed" in verdict.summary
    assert verdict.next[0].startswith("press Ctrl-Q in the job's terminal")
    assert "type" not in verdict.next[0].split()


# A read of stdin that is a pipe: a question that nobody will answer, or the next order of whoever drives the program.


ASKS: Frames = (Frame("confirm", TRAIN, 24), Frame("save", TRAIN, 31), MODULE)
QUESTIONS_READS = Wait(call="read", number=0, kind="read", fd=0, forever=True)
ORCHESTRATOR = 77  # outside of the job
SECOND = 6.0  # seconds of the order before


def asks(
    calls: tuple[str, ...],
    loops: tuple[str, ...] = (),
    before: bool = False,
    writers: tuple[int, ...] = (ORCHESTRATOR,),
) -> History:
    """A program that has trained reads a line from its stdin; ``before``: it was given one already, and trained by it."""
    history, since = job(1), STOPPED
    history.add(0.0, SourceLine(file=TRAIN, line=24, text="", calls=calls, loops=loops))
    if before:
        stands(history, FIRST, ASKS, QUESTIONS_READS, STOPPED + SECOND)
        train: tuple[Frames, ...] = ((Frame("step", TRAIN, 11), MODULE), (Frame("step", TRAIN, 13), MODULE))
        runs(history, FIRST, train, STOPPED + SECOND, STOPPED + 2 * SECOND)
        since = STOPPED + 2 * SECOND
    stands(history, FIRST, ASKS, QUESTIONS_READS, since + 90.0, since)
    for at in looks(STOPPED, since + 90.0):
        history.add(
            at,
            Descriptor(
                pid=FIRST, fd=0, kind="pipe", target="pipe:[9]", access="r", inode=9, readers=(FIRST,), writers=writers
            ),
        )
    history.at = since
    return history


@pytest.mark.parametrize("calls", [("sys.stdin.readline",), ("input",)])
def test_a_question_in_the_midst_of_training_hangs_within_seconds_though_not_surely(calls: tuple[str, ...]) -> None:
    """Somebody holds the write end, and may yet answer."""
    history = asks(calls)
    verdict = judged(history, history.at + 8.0)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "blocked_pipe", 0.65)


@pytest.mark.parametrize(
    ("calls", "loops", "before"),
    [
        (("sys.stdin.readline",), ("while",), False),
        (("input",), ("while",), False),
        (("sys.stdin.readline",), (), True),
        (("input",), (), True),
    ],
)
def test_who_is_given_one_order_after_the_other_is_given_time(
    calls: tuple[str, ...], loops: tuple[str, ...], before: bool
) -> None:
    """An orchestrator outside of the job sends when it likes; beyond the patience it is called hung, and not surely."""
    history = asks(calls, loops, before)
    since = history.at
    soon, late = judged(history, since + 30.0), judged(history, since + 80.0)

    assert soon.state == "inconclusive"
    assert (late.state, late.cause, late.confidence) == ("hung", "blocked_pipe", 0.65)


@pytest.mark.parametrize(
    ("loops", "cores", "state"), [(("while",), 0.9, "busy"), (("while",), 0.01, "hung"), ((), 0.9, "busy")]
)
def test_a_writer_outside_of_the_job_that_works_will_send_when_it_is_done(
    loops: tuple[str, ...], cores: float, state: str
) -> None:
    """Who shuffles the next epoch computes for minutes before its first line."""
    history = asks(("sys.stdin.readline",), loops)
    uses(history, ORCHESTRATOR, cores, 0.0, STOPPED + 90.0)
    verdict = judged(history, STOPPED + 80.0)

    assert verdict.state == state
    assert verdict.cause == ("waiting_on_work" if state == "busy" else "blocked_pipe")


def test_a_stdin_whose_other_end_nobody_is_seen_to_hold_may_be_written_to_from_where_nobody_can_look() -> None:
    """From outside of a container, for one: the end of the file would have been met otherwise."""
    history = asks(("sys.stdin.readline",), ("while",), writers=())

    assert judged(history, history.at + 8.0).state == "inconclusive"


def test_a_stdin_whose_other_end_only_its_reader_holds_is_sure() -> None:
    """Nobody is left who could send anything."""
    history = asks(("sys.stdin.readline",), ("while",), writers=(FIRST,))
    verdict = judged(history, history.at + 8.0)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_pipe")
    assert verdict.confidence > 0.9


# A server without visitors and a notebook that is asked nothing rest in a library's event loop: that is no hang.
#
# A training that waits in a loop which a library runs for it alone is one.


PID, OTHER, VISITOR, EPOLL, LISTENS, CALLS = 700, 701, 702, 4, 8, 9
STANDARD, PACKAGES = "/usr/lib/python3.11", "/usr/lib/python3.11/site-packages"
LOOP = (
    Frame("select", f"{STANDARD}/selectors.py", 468),
    Frame("_run_once", f"{STANDARD}/asyncio/base_events.py", 1898),
    Frame("run_forever", f"{STANDARD}/asyncio/base_events.py", 607),
    Frame("run", f"{STANDARD}/asyncio/runners.py", 190),
)
EVENT_LOOPS_MODULE = Frame("<module>", "/app/serve.py", 60)
EVENT_LOOPS_SERVER = (*LOOP, Frame("run", f"{PACKAGES}/uvicorn/server.py", 67), EVENT_LOOPS_MODULE)
ANYIO = (*LOOP, Frame("run", f"{PACKAGES}/anyio/_backends/_asyncio.py", 2312), EVENT_LOOPS_MODULE)
EVENT_LOOPS_OWN = (*LOOP, EVENT_LOOPS_MODULE)
INSTALLED = (
    *LOOP,
    Frame("serve", f"{PACKAGES}/oracle/server.py", 42),
    Frame("<module>", "/home/user/venv/bin/oracle", 8),
)


JUDGES = (
    *LOOP,
    Frame("evaluate", f"{PACKAGES}/ragas/evaluation.py", 300),
    Frame("reward", "/app/train.py", 20),
    EVENT_LOOPS_MODULE,
)
TRAINS = (
    Frame("backward", f"{PACKAGES}/torch/_tensor.py", 600),
    Frame("step", "/app/train.py", 12),
    EVENT_LOOPS_MODULE,
)
CELL_TRAINS = (*TRAINS[:2], *LOOP[1:], Frame("start", f"{PACKAGES}/ipykernel/kernelapp.py", 739), EVENT_LOOPS_MODULE)
BOOTSTRAP = Frame("_bootstrap", f"{STANDARD}/threading.py", 1002)
HEARTBEAT = (Frame("run", f"{PACKAGES}/ipykernel/heartbeat.py", 106), BOOTSTRAP)
TRAINER = (Frame("take", "/app/train.py", 20), Frame("fit", "/app/train.py", 44), BOOTSTRAP)
EVENT_LOOPS_ACCEPTS = (Frame("accept", f"{STANDARD}/socket.py", 293), Frame("<module>", "/app/hub.py", 9))
VISITS = (Frame("client", "/app/serve.py", 20), Frame("_bootstrap", f"{STANDARD}/multiprocessing/process.py", 314))
AT_REST = Wait(call="epoll_wait", number=232, kind="poll", fd=EPOLL, forever=True)
ON_A_PORT = Socket(family="tcp", state="LISTEN", local="0.0.0.0:8000")
ON_A_FILE = Socket(family="unix", state="LISTEN", local="/tmp/a b;reboot")
ACCEPTING = Wait(call="accept4", number=288, kind="accept", fd=LISTENS, forever=True)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
SECONDS = 120


def judged_in_a_loop(
    frames: Sequence[Frame],
    wait: Wait = AT_REST,
    other: Sequence[Frame] = (),
    steps: int = 0,
    before: Sequence[Frame] = (),
    on: int = LISTENS,
    listens: Socket = ON_A_PORT,
    child: bool = False,
) -> Verdict:
    """Of a program that has waited so for two minutes, beside another thread that waits in a futex, where one is given.

    Before: where it was seen until then; on: what its event loop watches; listens: where it waits for visitors; child: one that it
    started is connected to it, and waits for an answer.
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
    threads = [(PID, PID, frames, wait), *([(PID, OTHER, other, LOCK)] if other else [])]
    if child:
        threads.append(
            (VISITOR, VISITOR, VISITS, Wait(call="recvfrom", number=45, kind="recv", fd=CALLS, forever=True))
        )
        history.add(0.0, Process(pid=VISITOR, start_ticks=10, parent_pid=PID, name="python", command=("python", "serve.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
        for pid, peer in ((PID, VISITOR), (VISITOR, PID)):
            pair = Socket(family="tcp", state="ESTABLISHED", local="127.0.0.1:1", peer="127.0.0.1:2", peer_pids=(peer,),
                          received_ago_seconds=120.0)  # fmt: skip
            history.add(0.5, Descriptor(pid=pid, fd=CALLS, kind="socket", target="socket:[3]", socket=pair))
        watched = (LISTENS, CALLS)
        history.add(0.5, Descriptor(pid=PID, fd=EPOLL, kind="epoll", target="anon_inode:[eventpoll]", watched=watched))
    for second in range(1, SECONDS + 1):
        for pid, tid, stack, blocked in threads:
            history.add(float(second), Thread(pid=pid, tid=tid, name="python", state="S", cpu_seconds=5.0, wait=blocked,
                                              run_seconds=5.0, voluntary_switches=50, ran_ago_seconds=float(second)))  # fmt: skip
            history.add(float(second), Stack(pid=pid, tid=tid, frames=tuple(stack), samples=20, span_seconds=1.0))
    history.at = float(SECONDS)
    return judge(Case(history, session(mode="attach", root_pids=(PID,))))


@pytest.mark.parametrize("other", [(), HEARTBEAT])
def test_a_server_without_visitors_is_not_hung(other: Sequence[Frame]) -> None:
    """Nor is a kernel between two cells; what is seen is said."""
    verdict = judged_in_a_loop(EVENT_LOOPS_SERVER, other=other)

    assert (verdict.state, verdict.suspect) == ("inconclusive", None)
    assert "event loop of uvicorn: it is idle and has no request" in verdict.summary


def test_a_server_that_is_installed_rests_as_well() -> None:
    """It is the program itself, and its visitors are as few as those of a library's."""
    verdict = judged_in_a_loop(INSTALLED)

    assert (verdict.state, verdict.suspect) == ("inconclusive", None)
    assert "event loop of oracle: it is idle" in verdict.summary


@pytest.mark.parametrize("frames", [EVENT_LOOPS_OWN, ANYIO])
def test_a_loop_that_the_program_runs_itself_is_looked_at_as_before(frames: Sequence[Frame]) -> None:
    """Its coroutine waits for something; a library that only runs it keeps no visitors."""
    assert judged_in_a_loop(frames).summary.count("it is idle") == 0


def test_a_training_that_waits_in_the_loop_of_a_library_which_it_called_is_hung() -> None:
    """A library asks a judge of its answers for it, who is silent; nobody is there to visit it."""
    verdict = judged_in_a_loop(JUDGES, before=TRAINS, on=CALLS)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_network")


@pytest.mark.parametrize(
    ("frames", "before", "on"),
    [(EVENT_LOOPS_SERVER, TRAINS, LISTENS), (EVENT_LOOPS_SERVER, CELL_TRAINS, CALLS), (EVENT_LOOPS_SERVER, (), CALLS)],
)
def test_who_trains_inside_of_the_loop_or_listens_after_training_is_at_rest(
    frames: Sequence[Frame], before: Sequence[Frame], on: int
) -> None:
    """A model that is served when it is trained; a cell of a notebook, a job from a broker; and one that has never trained."""
    verdict = judged_in_a_loop(frames, before=before, on=on)

    assert (verdict.state, verdict.suspect) == ("inconclusive", None)
    assert "it is idle" in verdict.summary


def test_a_thread_of_the_program_that_stands_beside_a_librarys_loop_is_followed() -> None:
    """A request that trains in a thread may hang there."""
    verdict = judged_in_a_loop(EVENT_LOOPS_SERVER, other=TRAINER)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict.culprits[0].tid == OTHER


@pytest.mark.parametrize(("child", "state"), [(False, "inconclusive"), (True, "hung")])
def test_who_listens_and_is_waited_for_by_its_own_child_rests_no_more(child: bool, state: str) -> None:
    """Its visitors are there, and it answers none of them; that one more comes from elsewhere is not ruled out."""
    verdict = judged_in_a_loop(EVENT_LOOPS_OWN, child=child)

    assert (verdict.state, verdict.confidence <= Level.MEDIUM) == (state, True)


@pytest.mark.parametrize(("steps", "state"), [(0, "inconclusive"), (300, "hung")])
def test_who_listens_and_has_never_trained_may_be_a_server(steps: int, state: str) -> None:
    """After steps, nobody who connects is missed."""
    verdict = judged_in_a_loop(EVENT_LOOPS_ACCEPTS, ACCEPTING, steps=steps)

    assert verdict.state == state
    assert "blocked_network" in (verdict.cause, verdict.suspect and verdict.suspect.cause)
    assert verdict.next[0] == "ss -tlnp | grep -F 0.0.0.0:8000"


def test_a_socket_that_is_called_as_a_command_is_no_command() -> None:
    """What is to be typed may be pasted into a root shell."""
    verdict = judged_in_a_loop(EVENT_LOOPS_ACCEPTS, ACCEPTING, steps=300, listens=ON_A_FILE)

    assert verdict.next[0] == "ss -xlp | grep -F '/tmp/a b;reboot'"


# A rank that waits for the answer to a remote call of torch's RPC waits for the thread of another one that executes it.


API = TORCH + "distributed/rpc/api.py"
SERVES: Frames = (  # torch 2.13
    Frame("wait", LIB + "threading.py", 327),
    Frame("_all_gather", API, 257),
    Frame("shutdown", API, 382),
    MODULE,
)
REMOTE_CALLS_ASKS: Frames = (Frame("rpc_sync", API, 816), Frame("grade", TRAIN, 30), MODULE)
ASKS_FOR_ALL: Frames = (Frame("wait_all", TORCH + "futures/__init__.py", 338), Frame("grade", TRAIN, 30), MODULE)
RUNS = Frame("_run_function", TORCH + "distributed/rpc/internal.py", 209)
GRADES: Frames = (Frame("grade", TRAIN, 50), RUNS)
KEEPS: Frames = (Frame("keep_alive", TRAIN, 60), RUNS)
FOR_DAYS = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=200_000.0)
CALLER, REMOTE_CALLS_SERVER = FIRST, FIRST + 1
REMOTE_CALLS_UNTIL = STOPPED + 20.0


def told(asks: Frames = REMOTE_CALLS_ASKS, **since: float) -> Verdict:
    """A caller that waits since STOPPED, and threads of the server that execute one call each, asleep since then."""
    history: History = job(2, trained=False)
    stands(history, CALLER, asks, FOR_EVER, REMOTE_CALLS_UNTIL)
    stands(history, REMOTE_CALLS_SERVER, SERVES, FOR_EVER, REMOTE_CALLS_UNTIL, since=STOPPED - 50.0)
    for number, (name, began) in enumerate(since.items()):
        frames = {"grades": GRADES, "keeps": KEEPS}[name]
        stands(
            history,
            REMOTE_CALLS_SERVER,
            frames,
            FOR_DAYS,
            REMOTE_CALLS_UNTIL,
            since=began,
            tid=REMOTE_CALLS_SERVER + 50 + number,
        )
    return judged(history, REMOTE_CALLS_UNTIL)


@pytest.mark.parametrize("asks", [REMOTE_CALLS_ASKS, ASKS_FOR_ALL])
def test_the_call_that_sleeps_is_blamed_in_the_rank_that_executes_it(asks: Frames) -> None:
    """The caller waits for nothing else: for one call, or for several that it has begun."""
    verdict = told(asks, grades=STOPPED + 0.1)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")
    assert [(one.rank, one.frame) for one in verdict.culprits] == [(1, "grade (train.py:50)")]


def test_a_call_that_slept_before_is_not_the_one_that_is_waited_for() -> None:
    """One that keeps something alive for the whole run has not run since the caller began to wait."""
    verdict = told(keeps=STOPPED - 40.0, grades=STOPPED + 0.1)

    assert [one.frame for one in verdict.culprits] == ["grade (train.py:50)"]
    assert told(keeps=STOPPED - 40.0).cause != "endless_python"


def test_of_two_calls_that_sleep_since_then_none_is_blamed() -> None:
    """Nobody sees which one it is."""
    assert told(keeps=STOPPED + 0.1, grades=STOPPED + 0.2).cause != "endless_python"


def circle(kernel: float, reads: int = 0, faults: int = 0, wakes: int = 0) -> Verdict:
    """A caller waits for the server, both of whose threads execute a call that calls the server itself: none is left to answer.

    A native thread of the server uses 90 % of a core meanwhile: ``kernel`` of that in the kernel, with so many reads, page faults and
    wake-ups a second.
    """
    history: History = job(2, trained=False)
    stands(history, CALLER, REMOTE_CALLS_ASKS, FOR_EVER, REMOTE_CALLS_UNTIL)
    stands(history, REMOTE_CALLS_SERVER, SERVES, FOR_EVER, REMOTE_CALLS_UNTIL, since=STOPPED - 50.0)
    asks: Frames = (Frame("rpc_sync", API, 816), *GRADES)
    for tid in (REMOTE_CALLS_SERVER + 50, REMOTE_CALLS_SERVER + 51):
        stands(history, REMOTE_CALLS_SERVER, asks, FOR_EVER, REMOTE_CALLS_UNTIL, since=STOPPED + 0.1, tid=tid)
    for at in looks(STOPPED, REMOTE_CALLS_UNTIL):
        ran = (at - STOPPED) * 0.9
        history.add(at, Thread(pid=REMOTE_CALLS_SERVER, tid=REMOTE_CALLS_SERVER + 60, name="reactor", state="R",
                               cpu_seconds=ran, system_seconds=ran * kernel, run_seconds=ran, voluntary_switches=int(at * wakes),
                               read_calls=int(at * reads), write_calls=0))  # fmt: skip
        history.add(at, ProcessUsage(pid=REMOTE_CALLS_SERVER, state="S", threads=3, cpu_seconds=ran, major_faults=0,
                                     minor_faults=int(at * faults), resident_bytes=0))  # fmt: skip
    return judged(history, REMOTE_CALLS_UNTIL)


@pytest.mark.parametrize(
    ("works", "state"),
    [
        pytest.param({"kernel": 0.85}, "hung", id="it gives its core away at every look (sched_yield)"),
        pytest.param({"kernel": 0.1}, "busy", id="it computes"),
        pytest.param({"kernel": 0.85, "reads": 500}, "busy", id="it reads"),
        pytest.param({"kernel": 0.85, "faults": 5000}, "busy", id="it touches new memory"),
        pytest.param({"kernel": 0.85, "wakes": 50}, "busy", id="it sleeps in between"),
    ],
)
def test_a_native_thread_that_only_polls_at_a_full_core_is_no_work_of_its_process(works: Any, state: str) -> None:
    """TensorPipe's reactor does so as long as it lives."""
    assert circle(**works).state == state
