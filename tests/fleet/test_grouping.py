"""Which parts of several hosts are one job, and when the user has to say which one is meant."""

from typing import Any

import msgspec
import pytest

from perfwatch.errors import UsageError
from perfwatch.fleet.grouping import chosen, grouped
from perfwatch.fleet.merge.snapshot import JobView, Snapshot
from perfwatch.verdict import Suspect
from perfwatch_probes.readings import Process
from tests.fleet.parts import simulated


def said(view: JobView, **names: Any) -> JobView:
    """A part whose ranks say something else of themselves."""
    return msgspec.structs.replace(view, identity=msgspec.structs.replace(view.identity, **names))


def hosts(**views: JobView | tuple[JobView, ...]) -> dict[str, Snapshot]:
    """What each host says; it calls itself as it is called."""
    return {
        host: Snapshot(version="1", host=host, place=host, made=1.0, jobs=one if isinstance(one, tuple) else (one,))
        for host, one in views.items()
    }


def groups(**views: JobView | tuple[JobView, ...]) -> list[list[str]]:
    """The hosts of each job, in order."""
    return sorted(sorted(host for host, _ in group.views) for group in grouped(hosts(**views)))


FIRST, SECOND = (part.view for part in simulated(2))


@pytest.mark.parametrize("other", ["node-c:29500", "10.0.0.3:29500"])
def test_two_masters_are_two_jobs_on_whatever_port(other: str) -> None:
    """Each on two hosts with the same ranks: mixed, the chain of one would end in a worker of the other."""
    parts = {
        "a": said(FIRST, master="node-a:29500", run=""),
        "b": said(SECOND, master="node-a:29500", run=""),
        "c": said(FIRST, master=other, run=""),
        "d": said(SECOND, master=other, run=""),
    }

    assert groups(**parts) == [["a", "b"], ["c", "d"]]
    with pytest.raises(UsageError, match="2 jobs run on these hosts"):
        chosen(hosts(**parts))


@pytest.mark.parametrize("other", ["localhost:29500", "127.0.0.1:29500", "node-a.cluster.org:29500", "10.0.0.1:29500"])
def test_other_names_of_one_master_part_no_job(other: str) -> None:
    """The first host calls itself localhost; one uses the whole name, or a number."""
    assert groups(a=said(FIRST, master=other), b=said(SECOND, master="node-a:29500")) == [["a", "b"]]


def test_a_master_called_localhost_is_of_the_job_that_names_its_host() -> None:
    """The ranks of both jobs would fit."""
    parts = {
        "a": said(FIRST, master="localhost:29500"),
        "b": said(SECOND, master="node-x:29500"),
        "c": said(SECOND, master="a:29500"),
    }

    assert groups(**parts) == [["a", "c"], ["b"]]


def test_ranks_that_never_met_may_have_been_told_two_masters_by_mistake() -> None:
    """Each host names itself: apart, nobody would see why they wait for each other."""
    waits = Suspect(state="hung", cause="blocked_rendezvous", silent_seconds=1.0, decides_in_seconds=9.0)
    parts = [
        msgspec.structs.replace(
            said(view, master=f"node-{number}:29500"),
            verdict=msgspec.structs.replace(view.verdict, state="inconclusive", cause=None, suspect=waits),
        )
        for number, view in enumerate((FIRST, SECOND))
    ]

    assert groups(a=parts[0], b=parts[1]) == [["a", "b"]]


def test_a_step_of_slurms_for_each_node_is_one_job_where_the_master_is_one() -> None:
    """``for node in $nodes; do srun -w $node torchrun --node-rank ... & done``; the first may call itself localhost."""
    steps = [said(view, scheduler=f"slurm job 12 step {step}") for step, view in enumerate((FIRST, SECOND))]

    assert groups(a=steps[0], b=steps[1]) == [["a", "b"]]
    assert groups(a=said(steps[0], master="localhost:29500"), b=steps[1]) == [["a", "b"]]
    assert chosen(hosts(a=steps[0], b=steps[1]), "slurm job 12 step ").hosts == {"a", "b"}


def test_two_steps_that_have_the_same_ranks_are_two_jobs() -> None:
    """What an earlier try has left behind, and the next one."""
    steps = [said(FIRST, scheduler=f"slurm job 12 step {step}") for step in range(2)]

    assert groups(a=steps[0], b=steps[1]) == [["a"], ["b"]]


def test_ranks_that_a_script_of_slurms_started_by_ssh_are_of_its_job() -> None:
    """They say nothing of Slurm."""
    batch = said(FIRST, scheduler="slurm job 12 step batch")

    assert chosen(hosts(a=batch, b=SECOND), "slurm job 12 step ").hosts == {"a", "b"}


def test_of_several_jobs_the_one_of_the_scheduler_is_meant() -> None:
    """Somebody tries something on a node of the allocation."""
    batch = said(FIRST, scheduler="slurm job 12 step 0")
    other = said(SECOND, master="node-z:1234")

    assert chosen(hosts(a=batch, b=other), "slurm job 12 step ").hosts == {"a"}


@pytest.mark.parametrize("names", [{}, {"master": "", "run": "", "scheduler": "", "world_size": None}])
def test_two_jobs_of_one_host_that_say_the_same_are_a_question(names: dict[str, Any]) -> None:
    """Two containers on one port, or two nameless runs of one script: the second may be the sick one."""
    (healthy,), (sick,) = (simulated(1, stuck_rank=stuck) for stuck in (None, 3))
    second = msgspec.structs.replace(sick.view, session=msgspec.structs.replace(sick.view.session, root_pids=(200,)))

    with pytest.raises(UsageError, match="2 jobs on a say the same of themselves") as failed:
        chosen(hosts(a=(said(healthy.view, **names), said(second, **names))))
    assert failed.value.advice == "look at one of them there: perfwatch attach 100; perfwatch attach 200"


def test_a_worker_that_outlives_its_rank_is_no_second_job() -> None:
    """After a restart it has the number of its rank for some seconds."""
    worker = tuple(
        msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, name="pt_data_worker"))
        for one in FIRST.records
        if isinstance(one.reading, Process) and one.reading.rank == 3
    )
    pids = tuple(one.reading.pid for one in worker if isinstance(one.reading, Process))
    left = msgspec.structs.replace(
        FIRST, records=worker, ranks=(3,), session=msgspec.structs.replace(FIRST.session, root_pids=pids)
    )

    assert chosen(hosts(a=(left, FIRST), b=SECOND)).views[0] == ("a", FIRST)


def test_every_rank_twice_is_two_jobs() -> None:
    """In networks of their own both call their master by one name."""
    with pytest.raises(UsageError, match=r"every rank of .* is there twice"):
        chosen(hosts(a=FIRST, b=SECOND, c=FIRST, d=SECOND))
