"""Sockets and terminals: a thread that waits for somebody to take what it sends, or for an answer; and terminals at which nobody types."""

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, PolledFile, Socket, Wait
from tests.recorded import RECORDINGS, load_case
from tests.triage.rank_looks import FIRST, MODULE, STOPPED, TRAIN, Frames, job, judged, looks, process, stands, uses

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

    assert f"waits for {COLLECTOR} to take what it sends, which has taken nothing for 6" in found.summary
    assert found.alternatives[0].refuted_by == "not one byte was taken meanwhile"
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
    words = "to take what it sends, which has taken nothing" if sends else "which has sent nothing"

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
