"""NCCL's RAS service: what it answers, whether that is about our job, and what happens where it is silent, strange or foreign."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch.probes.errand import Errand
from perfwatch.probes.filesystem import Absent
from perfwatch.probes.group_variables import free_port
from perfwatch.probes.nccl_ras import Job, NcclRasProbe, belonging
from perfwatch.probes.nccl_report import parse
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Communicator, GroupMember, Reading

RECORDED = Path(__file__).parent / "nccl"
HUNG, HUNG_TEXT = "ras_2.28.9_hung.json", "ras_2.28.9_hung.txt"
# The lines of a report of NCCL 2.24 about a job whose ranks have different counts and of which one does not answer: made
# from the format strings of its src/ras/client_support.cc.
OLD_REPORT = """NCCL version 2.24.3 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          2            1          4        4

Communicators... (3.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         2         4         4   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 10.0.0.7 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3

Warnings
========

TIMEOUT
  Encountered 1 communication timeout while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 120
  Rank 2 has launched up to operation 117 -- GPU 0 managed by process 3487983 on node 10.0.0.7

"""


def recorded(name: str) -> list[Communicator]:
    """The communicators of a recorded answer."""
    return parse((RECORDED / name).read_text())


def test_the_json_of_nccl_2_28_names_every_rank_and_count() -> None:
    """Recorded on two H200 while rank 1 slept."""
    (one,) = recorded(HUNG)

    assert (one.communicator, one.size, one.nccl_version, one.missing) == ("e9ce85835b88f237", 2, "2.28.9", 0)
    assert [(m.rank, m.pid, m.launched["AllReduce"]) for m in one.members] == [(0, 607, 3212), (1, 608, 3193)]


def test_the_text_of_the_same_moment_says_the_same() -> None:
    """An older NCCL knows no JSON."""
    (json,), (text,) = recorded(HUNG), recorded(HUNG_TEXT)

    assert text.source == "text"
    assert (text.communicator, text.size) == (json.communicator, json.size)
    assert [(m.pid, m.launched["AllReduce"]) for m in text.members] == [
        (m.pid, m.launched["AllReduce"]) for m in json.members
    ]


@pytest.mark.parametrize("name", ["ras_2.28.9_one_dead.json", "ras_2.28.9_one_dead.txt"])
def test_a_rank_that_was_killed_is_named(name: str) -> None:
    """Recorded 20 s after a SIGKILL. The JSON of 2.28.9 lacks a comma there, and is read all the same."""
    (one,) = recorded(name)

    assert (one.size, one.missing) == (2, 1)
    (dead,) = [member for member in one.members if member.state in ("unresponsive", "missing")]
    assert (dead.rank, dead.pid, dead.host, dead.launched) == (1, 630, "192.0.2.2", {})


def test_two_groups_that_are_called_in_opposite_order_are_kept_apart() -> None:
    """Recorded while each of two ranks waited for the other: in one group rank 0 is ahead, in the other rank 1."""
    for name in ("ras_2.28.9_opposite_order.json", "ras_2.28.9_opposite_order.txt"):
        counts = [[m.launched.get("AllReduce") for m in one.members] for one in recorded(name) if one.members]

        assert [21, 20] in counts
        assert [20, 21] in counts


def test_level_ranks_are_not_named_in_the_text() -> None:
    """It says nothing of a communicator without trouble but its size."""
    (one,) = recorded("ras_2.28.9_level.txt")

    assert (one.size, one.members) == (2, ())


def test_a_report_of_nccl_2_24_is_understood() -> None:
    """Two ranks are told together, one alone, one is missing."""
    (one,) = parse(OLD_REPORT)

    assert (one.size, one.missing, one.nccl_version) == (4, 1, "2.24.3")
    assert [(m.rank, m.state, m.launched) for m in one.members] == [
        (2, "running", {"AllReduce": 117}),
        (3, "missing", {}),
    ]


@pytest.mark.parametrize(
    "text", ["", "hello", "{", '{"communicators": [{"hash": 3}]}', '{"communicators": 7}', "[" * 99]
)
def test_anything_else_is_refused_and_never_guessed_from(text: str) -> None:
    """Torn, foreign or hostile."""
    with pytest.raises(Unavailable):
        parse(text)


def test_every_torn_answer_is_refused() -> None:
    """A rank that dies while it answers leaves half of a report."""
    whole = (RECORDED / HUNG).read_text()
    for length in range(1, len(whole.rstrip()) - 1, 97):
        with pytest.raises(Unavailable):
            parse(whole[:length])


def test_an_answer_about_another_job_does_not_count() -> None:
    """Two jobs of one user share the port; the pids tell whose answer it is."""
    with pytest.raises(Unavailable, match="another job"):
        belonging(recorded(HUNG), Job((11, 12)), certain=True)
    with pytest.raises(Unavailable, match="of 2 ranks, not 1"):
        belonging(recorded(HUNG), Job((607, 608), world_size=1), certain=True)


def test_the_pids_of_a_container_are_told_from_ours() -> None:
    """The service names processes as they see themselves."""
    (one,) = belonging(recorded(HUNG), Job((90607, 90608), inner={607: 90607, 608: 90608}), certain=False)

    assert [(m.pid, m.local) for m in one.members] == [(90607, True), (90608, True)]


def test_of_several_hosts_only_ours_is_local() -> None:
    """A pid of another host may happen to be one of ours."""
    members = (GroupMember(rank=0, pid=7, host="a", launched={"AllReduce": 1}), GroupMember(rank=1, pid=8, host="b"),
               GroupMember(rank=2, pid=9, host="b"))  # fmt: skip
    (one,) = belonging([Communicator(communicator="c", size=3, members=members)], Job((7, 8)), certain=False)

    assert [m.local for m in one.members] == [True, False, False]


Service = Callable[..., tuple[int, int]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Starts a stand-in service with a manner; gives its pid and port."""
    started: list[subprocess.Popen[str]] = []
    report = (RECORDED / HUNG).read_text().replace('"pid": 607', '"pid": {PID}').replace('"pid": 608', '"pid": {PID}')
    text = (
        (RECORDED / HUNG_TEXT)
        .read_text()
        .replace("process 607", "process {PID}")
        .replace("process 608", "process {PID}")
    )
    (tmp_path / "json").write_text(report)
    (tmp_path / "text").write_text(text)

    def start(manner: str = "", environment: str | None = None, port: int | None = None) -> tuple[int, int]:
        port = port or free_port()
        named = {"NCCL_RAS_ADDR": f"localhost:{port}"} if environment is None else {"NCCL_RAS_ADDR": environment}
        command = [sys.executable, str(Path(__file__).parent / "ras_service.py"), str(port)]
        process = subprocess.Popen(
            [*command, str(tmp_path / "json"), str(tmp_path / "text"), manner],
            env={**os.environ, **named},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), "it does not listen"
        return process.pid, port

    yield start
    for process in started:
        process.kill()
        process.communicate()


def answer(pids: tuple[int, ...]) -> list[Reading]:
    """Ask as the watcher does: in a process of its own."""
    errand = Errand(lambda: NcclRasProbe(attempts=2).look(Job(pids)), deadline_seconds=20.0)
    while (found := errand.poll()) is None:
        time.sleep(0.01)
    return found


def test_a_service_is_found_by_the_environment_and_asked(service: Service) -> None:
    """The whole way, over a socket."""
    pid, _ = service()
    (one,) = answer((pid,))

    assert isinstance(one, Communicator)
    assert [(m.pid, m.local) for m in one.members] == [(pid, True), (pid, True)]


def test_an_old_service_is_asked_for_text(service: Service) -> None:
    """NCCL before 2.28.7 does not know SET FORMAT and goes on."""
    pid, _ = service("old")
    (one,) = answer((pid,))

    assert isinstance(one, Communicator)
    assert one.source == "text"


def test_a_port_that_two_processes_of_the_job_share_is_the_services(service: Service) -> None:
    """A program may set NCCL_RAS_ADDR itself: then no environment shows it."""
    first, port = service(environment="localhost:1")
    second, _ = service(environment="localhost:1", port=port)

    (one,) = answer((first, second))
    assert isinstance(one, Communicator)
    assert {m.pid for m in one.members} in ({first}, {second})


@pytest.mark.parametrize(
    ("manner", "said"), [("silent", "did not answer"), ("torn", "cannot be read"), ("web", "is not")]
)
def test_a_service_that_misbehaves_costs_seconds_and_says_why(service: Service, manner: str, said: str) -> None:
    """Silent (the process is stopped), dying while it answers, or no service at all."""
    pid, _ = service(manner)

    with pytest.raises(Unavailable, match=said):
        answer((pid,))


def test_a_port_of_another_job_is_not_asked(service: Service) -> None:
    """Our job's environment names a port on which only others listen."""
    other, port = service()
    ours = subprocess.Popen(["sleep", "60"], env={"NCCL_RAS_ADDR": f"localhost:{port}", "PATH": os.environ["PATH"]})
    try:
        with pytest.raises(Unavailable, match="belongs to other processes") as raised:
            answer((ours.pid,))
    finally:
        ours.kill()
        ours.wait()

    assert "perfwatch run" in raised.value.advice
    assert other


def test_a_job_without_the_service_lacks_nothing(service: Service) -> None:
    """A gloo job, or NCCL_RAS_ENABLE=0: absent, not missing."""
    for environment in ({}, {"NCCL_RAS_ENABLE": "0"}):
        ours = subprocess.Popen(["sleep", "60"], env={**environment, "PATH": os.environ["PATH"]})
        try:
            with pytest.raises(Absent):
                answer((ours.pid,))
        finally:
            ours.kill()
            ours.wait()
