"""A thread that waits for somebody to take what it sends: told the other way round from one that waits for bytes."""

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.waits.sending import gives, untaken
from perfwatch_probes.readings import PolledFile, Socket, Wait
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "stalled_collective" / "fires" / "collector_that_reads_no_more"
COLLECTOR = "127.0.0.1:9831"


def test_a_full_connection_is_told_by_what_was_not_taken() -> None:
    """A handler of ``logging`` sends each record to a collector that stopped reading."""
    verdict = diagnose(load_case(CASE), expected_of(CASE).at)
    shown = next(one for one in verdict.evidence if one.witness == "socket")

    assert f"waits for {COLLECTOR} to take what it sends" in verdict.summary
    assert shown.claim == f"{COLLECTOR} does not take what is sent"
    assert shown.observed.startswith("4,152,434 bytes not taken (Send-Q), last sent 7")
    assert verdict.next[1] == f"ss -tnp | grep {COLLECTOR}"


def test_of_a_single_rank_the_same_is_a_blocked_network() -> None:
    """It stands among the findings of the case."""
    found = next(
        one for one in diagnose(load_case(CASE), expected_of(CASE).at).findings if one.cause == "blocked_network"
    )

    assert f"waits for {COLLECTOR} to take what it sends, which has taken nothing for 6" in found.summary
    assert found.alternatives[0].refuted_by == "not one byte was taken meanwhile"
    assert "pid 22159, which holds the other end" in found.next[1]


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
    """A socket with a timeout is polled first."""
    assert gives(wait, 5) is sends


def test_what_was_sent_again_speaks_for_a_network_that_loses_it() -> None:
    """A collector that merely reads no more confirms all that comes."""
    assert untaken(Socket(family="tcp", state="ESTABLISHED", send_queue_bytes=9_000, retransmits=3)) == (
        "9,000 bytes not taken (Send-Q), sent again 3 times"
    )
    assert not untaken(Socket(family="unix", state="ESTABLISHED"))
