"""NCCL's RAS service: whether an answer is about our job, and what happens where it is silent, strange or foreign."""

import os
import subprocess
import time
from collections.abc import Sequence

import pytest

from perfwatch_probes.errand import Errand
from perfwatch_probes.filesystem import Absent
from perfwatch_probes.nccl_ras import Job, NcclRasProbe, belonging
from perfwatch_probes.nccl_report import parse
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Communicator, GroupMember, Reading
from tests.probes.ras_answers import ras_answer
from tests.probes.ras_services import Services

pytestmark = pytest.mark.live

HUNG = "2.28.9_hung.json"


def recorded(name: str) -> list[Communicator]:
    """The communicators of a recorded answer."""
    return parse(ras_answer(name))


def test_an_answer_about_another_job_does_not_count() -> None:
    """Two jobs of one user share the port; the pids tell whose answer it is."""
    with pytest.raises(Unavailable, match="another job"):
        belonging(recorded(HUNG), Job((11, 12)), certain=True)
    with pytest.raises(Unavailable, match="of 2 ranks, not 1"):
        belonging(recorded(HUNG), Job((607, 608), world_size=1), certain=False)


def group(name: str, *pids: int, host: str = "a") -> Communicator:
    """A communicator of these processes of one host."""
    members = tuple(
        GroupMember(rank=rank, pid=pid, host=host, launched={"AllReduce": 1}) for rank, pid in enumerate(pids)
    )
    return Communicator(communicator=name, size=len(pids), members=members)


def ours(answer: Sequence[Communicator], job: Job, certain: bool = True) -> dict[str, list[int | None]]:
    """By communicator, which of its members are of the job."""
    found = belonging(answer, job, certain)
    return {one.communicator: [member.pid for member in one.members if member.local] for one in found}


def test_what_a_process_of_the_job_answers_is_about_the_job() -> None:
    """Of seven of its ranks nobody could read whose they are; it is larger than we know; one that nobody asked may be anybody's."""
    eight = [group("all", *range(700, 708))]

    assert ours(eight, Job((700,), world_size=8)) == {"all": [700]}
    assert ours(eight, Job((700, 701), world_size=2)) == {"all": [700, 701]}
    with pytest.raises(Unavailable, match="another job"):
        ours(eight, Job((700,), world_size=8), certain=False)


def test_an_engine_that_shares_a_communicator_with_the_ranks_is_beside_them() -> None:
    """Its own group is none of the job's."""
    answer = [group("ranks", 700, 701), group("weights", 700, 701, 900), group("engine", 900, 901)]

    assert ours(answer, Job((700, 701), world_size=2)) == {"ranks": [700, 701], "weights": [700, 701]}


def test_our_host_is_the_one_with_most_of_our_processes() -> None:
    """A pid of another host may happen to be one of ours; where there are as many there, nobody knows which is ours."""
    here, there = group("here", 700, 701, 900), group("there", 701, host="b")

    assert ours([here, there], Job((700, 701))) == {"here": [700, 701], "there": []}
    with pytest.raises(Unavailable, match="another job"):
        ours([group("here", 700, 900), group("there", 700, 901, host="b")], Job((700,)))


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


def answer(pids: tuple[int, ...]) -> list[Reading]:
    """Ask as the watcher does: in a process of its own."""
    errand = Errand(lambda: NcclRasProbe(attempts=2).look(Job(pids)), deadline_seconds=20.0)
    while (found := errand.poll()) is None:
        time.sleep(0.01)
    return found


def test_a_service_is_found_by_the_environment_and_asked(service: Services) -> None:
    """The whole way, over a socket."""
    pid = service().pid
    (one,) = answer((pid,))

    assert isinstance(one, Communicator)
    assert [(m.pid, m.local) for m in one.members] == [(pid, True), (pid, True)]


def test_an_old_service_is_asked_for_text(service: Services) -> None:
    """NCCL before 2.28.7 does not know SET FORMAT and goes on."""
    pid = service("old").pid
    (one,) = answer((pid,))

    assert isinstance(one, Communicator)
    assert one.source == "text"


def test_a_port_that_two_processes_of_the_job_share_is_the_services(service: Services) -> None:
    """A program may set NCCL_RAS_ADDR itself: then no environment shows it."""
    first = service(environment="localhost:1")
    second = service(environment="localhost:1", port=first.port)

    (one,) = answer((first.pid, second.pid))
    assert isinstance(one, Communicator)
    assert {m.pid for m in one.members} in ({first.pid}, {second.pid})


@pytest.mark.parametrize(
    ("manner", "said"), [("silent", "did not answer"), ("torn", "cannot be read"), ("web", "is not")]
)
def test_a_service_that_misbehaves_costs_seconds_and_says_why(service: Services, manner: str, said: str) -> None:
    """Silent (the process is stopped), dying while it answers, or no service at all."""
    pid = service(manner).pid

    with pytest.raises(Unavailable, match=said):
        answer((pid,))


def test_a_port_of_another_job_is_not_asked(service: Services) -> None:
    """Our job's environment names a port on which only others listen."""
    other = service()
    ours = subprocess.Popen(
        ["sleep", "60"], env={"NCCL_RAS_ADDR": f"localhost:{other.port}", "PATH": os.environ["PATH"]}
    )
    try:
        with pytest.raises(Unavailable, match="belongs to other processes") as raised:
            answer((ours.pid,))
    finally:
        ours.kill()
        ours.wait()

    assert "perfwatch run" in raised.value.advice
    assert other.end() == (0, 0)


def test_a_job_without_the_service_lacks_nothing(service: Services) -> None:
    """A gloo job, or NCCL_RAS_ENABLE=0: absent, not missing."""
    for environment in ({}, {"NCCL_RAS_ENABLE": "0"}):
        ours = subprocess.Popen(["sleep", "60"], env={**environment, "PATH": os.environ["PATH"]})
        try:
            with pytest.raises(Absent):
                answer((ours.pid,))
        finally:
            ours.kill()
            ours.wait()
