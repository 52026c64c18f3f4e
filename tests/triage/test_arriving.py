"""Whose bytes speak for a download: those of the connection that the thread waits on, and not of any other."""

from dataclasses import replace

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.moving.arriving import passed, waited_on
from perfwatch_probes import readings as r
from tests.recorded import RECORDINGS, load_case

CASES = RECORDINGS / "downloading"
SILENT = CASES / "lookalike" / "bytes_on_another_connection"
TRICKLES = CASES / "fires" / "busy_trickling_download"


def test_what_a_thread_follows_does_not_hide_that_the_training_thread_waits_for_a_silent_server() -> None:
    """The suspicion stands, with its countdown, while the other connection gets 40 bytes a second."""
    verdict = diagnose(load_case(SILENT), expected_of(SILENT).at)

    assert verdict.suspect is not None
    assert verdict.suspect.cause == "blocked_network"
    assert "downloading" not in {one.cause for one in verdict.findings}


def test_a_download_is_surer_where_the_thread_was_seen_to_wait_for_its_bytes() -> None:
    """Without a look at the thread's waits, bytes on any socket of its process count, for less."""
    recording, at = load_case(TRICKLES), expected_of(TRICKLES).at
    seen = tuple(one for one in recording.records if not isinstance(one.reading, r.Thread))

    sure, unsure = diagnose(recording, at), diagnose(replace(recording, records=seen), at)

    assert (sure.cause, sure.confidence) == ("downloading", 0.9)
    assert (unsure.cause, unsure.confidence) == ("downloading", 0.7)


def test_an_event_loop_waits_on_whatever_it_watches() -> None:
    """The wait is on the epoll instance; the bytes come on a connection."""
    history = History()
    wait = r.Wait(call="epoll_wait", number=232, kind="poll", fd=3)
    history.add(1.0, r.Thread(pid=7, tid=7, name="python", state="S", cpu_seconds=0.0, wait=wait))
    history.add(1.0, r.Descriptor(pid=7, fd=3, kind="epoll", target="anon_inode:[eventpoll]", watched=(5, 6)))
    for at, received in ((1.0, 100), (2.0, 900)):
        socket = r.Socket(family="tcp", state="ESTABLISHED", received_bytes=received, sent_bytes=10)
        history.add(at, r.Descriptor(pid=7, fd=5, kind="socket", target="socket:[1]", socket=socket))
    history.at = 2.0

    assert waited_on(history, 7, 7, 10.0) == {3, 5, 6}
    assert (passed(history, 7, 5, 10.0), passed(history, 7, 5, 10.0, sent=True), passed(history, 7, 6, 10.0)) == (
        800,
        0,
        0,
    )
