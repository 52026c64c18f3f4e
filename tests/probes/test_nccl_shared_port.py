"""Several jobs on NCCL's RAS port: the kernel hands a connection to any of them, and only ours is asked for a report."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.nccl_acceptor import Acceptors
from perfwatch_probes.nccl_address import addresses
from perfwatch_probes.nccl_ras import ATTEMPTS, Job, NcclRasProbe
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.sock_diag import other_end
from tests.probes.ras_services import Services

pytestmark = pytest.mark.live

LOOKS = 20


def speaks_ipv6() -> bool:
    """Whether this machine has ::1; some containers do not."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not speaks_ipv6(), reason="no IPv6 here")


def stopped(pid: int) -> None:
    """Stop a child of ours, and wait until it is."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=IPV6)])
def test_only_the_jobs_own_service_is_asked_for_a_report(service: Services, host: str) -> None:
    """Of four on one port; the others are greeted, again and again, and left alone."""
    ours = service(host=host)
    others = [service(port=ours.port, host=host) for _ in range(3)]

    for _ in range(LOOKS):
        (one,) = NcclRasProbe().look(Job((ours.pid,)))
        assert {(member.pid, member.local) for member in one.members} == {(ours.pid, True)}

    assert ours.end() == (LOOKS, LOOKS)
    counted = [other.end() for other in others]
    assert sum(greeted for greeted, _ in counted) > ATTEMPTS
    assert [asked for _, asked in counted] == [0, 0, 0]


def test_where_the_jobs_own_service_is_stopped_nobody_else_is_asked(service: Services) -> None:
    """It gives up in time and says what would help; where all connections came to the stopped one, that it does not answer."""
    ours = service()
    others = [service(port=ours.port) for _ in range(2)]
    stopped(ours.pid)
    began = time.monotonic()

    with pytest.raises(Unavailable, match=r"shared with other jobs|did not answer") as raised:
        NcclRasProbe(connecting_seconds=2.0).look(Job((ours.pid,)))
    assert time.monotonic() - began < 20.0
    assert "perfwatch run" in raised.value.advice or "did not answer" in raised.value.reason
    assert [other.end()[1] for other in others] == [0, 0]


def test_a_stopped_process_of_the_job_costs_a_moment(service: Services) -> None:
    """Its other processes answer; who is stopped accepts nothing, and the wait for it is short at first."""
    first = service()
    second = service(port=first.port)
    other = service(port=first.port)
    stopped(first.pid)

    (one,) = NcclRasProbe(connecting_seconds=10.0).look(Job((first.pid, second.pid)))
    assert {member.pid for member in one.members} == {second.pid}
    assert other.end()[1] == 0


@IPV6
def test_a_job_is_reached_at_the_address_that_it_listens_on(service: Services) -> None:
    """localhost is ::1 for another job, and 127.0.0.1 for ours."""
    ours = service()
    other = service(port=ours.port, host="::1")

    assert addresses(Filesystem(), (ours.pid,)) == [(("127.0.0.1", ours.port), False)]
    NcclRasProbe().look(Job((ours.pid,)))
    assert (ours.end(), other.end()) == ((1, 1), (0, 0))


def test_where_descriptors_may_not_be_seen_it_cannot_be_told_who_accepted(tmp_path: Path) -> None:
    """Then a report is asked for, and its processes tell whose it is."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "fd").symlink_to("fd")  # a loop: not readable, even for root
    (tmp_path / "8" / "fd").mkdir(parents=True)
    readable, unreadable = Acceptors(Filesystem(proc=tmp_path), (8, 9)), Acceptors(Filesystem(proc=tmp_path), (7, 8))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as connection:
            assert readable.ours(connection) is None, "nobody has accepted it yet"
            with listener.accept()[0] as accepted:
                inode = os.fstat(accepted.fileno()).st_ino
                assert (readable.ours(connection), unreadable.ours(connection)) == (False, None)
                (tmp_path / "8" / "fd" / "3").symlink_to(f"socket:[{inode}]")
                assert (readable.ours(connection), unreadable.ours(connection)) == (True, True)


@pytest.mark.parametrize(
    ("listens", "connects"),
    [
        ("127.0.0.1", "127.0.0.1"),
        pytest.param("::1", "::1", marks=IPV6),
        pytest.param("::", "127.0.0.1", marks=IPV6),
        pytest.param("::", "::1", marks=IPV6),
    ],
)
def test_the_other_end_of_a_connection_is_found_once_it_is_accepted(listens: str, connects: str) -> None:
    """Whatever family either side speaks."""
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::") as listener:
        with socket.create_connection((connects, listener.getsockname()[1])) as ours:
            assert other_end(ours) is None
            with listener.accept()[0] as accepted:
                found = other_end(ours)

                assert found is not None
                assert (found.inode, found.state) == (os.fstat(accepted.fileno()).st_ino, "ESTABLISHED")
                assert found.peer.rpartition(":")[2] == str(ours.getsockname()[1])
