"""Who of a job may read from a pipe, or keep it open: what was forked holds its parent's descriptors and uses none of them."""

import pytest

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import read_job
from perfwatch.triage.waits.node import node_of
from perfwatch.triage.waits.workers import at_pipe
from perfwatch_probes.readings import Frame, Process, Stack

TRAINER, CHILD, LOADER, PEER = 10, 20, 21, 30


@pytest.mark.parametrize(
    ("holders", "writing", "left"),
    [
        ((TRAINER, LOADER), True, (TRAINER,)),  # the trainer should read, its worker only holds the end
        (
            (TRAINER, LOADER),
            False,
            (TRAINER, LOADER),
        ),  # as long as a worker holds the write end nobody hears of the end
        ((LOADER,), True, (LOADER,)),  # nobody else could read
        ((PEER, LOADER), True, (PEER, LOADER)),  # no parent of the worker holds it: it was given to it
    ],
)
def test_a_loader_that_inherited_the_read_end_is_nobody_to_wait_for(
    holders: tuple[int, ...], writing: bool, left: tuple[int, ...]
) -> None:
    """The trainer's child writes into its stdout; the trainer's DataLoader worker was forked after it was started."""
    history = History(at=1.0)
    for pid, parent, name in (
        (TRAINER, 1, "python"),
        (CHILD, TRAINER, "python"),
        (LOADER, TRAINER, "pt_data_worker"),
        (PEER, TRAINER, "sh"),
    ):
        torch = pid in (TRAINER, LOADER)
        command = ("sh",) if pid == PEER else ("python", "train.py")
        one = Process(
            pid=pid,
            start_ticks=pid,
            parent_pid=parent,
            name=name,
            command=command,
            python=name != "sh",
            torch_loaded=torch,
        )
        history.add(0.0, one)
    job = read_job(history)

    assert at_pipe(history, job, node_of(history, job, CHILD), holders, writing) == left


@pytest.mark.parametrize(
    ("waiting", "left"),
    [((LOADER,), (PEER,)), ((LOADER, PEER), (LOADER, PEER))],
    ids=["one_of_two", "all"],
)
def test_whose_own_queue_is_full_owes_nothing_to_an_empty_one(waiting: tuple[int, ...], left: tuple[int, ...]) -> None:
    """Forked readers hold each other's pipes; where all of them wait for room, one of their queues does not get through."""
    history = History(at=1.0)
    for pid, parent in ((TRAINER, 1), (LOADER, TRAINER), (PEER, TRAINER)):
        command = ("python", "train.py")
        history.add(
            0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=command, python=True)
        )
        at = "put" if pid in waiting else "read"
        file = "/usr/lib/python3.11/multiprocessing/queues.py" if pid in waiting else "/app/feed.py"
        frames = (Frame(at, file, 89), Frame("reader", "/app/feed.py", 30))
        history.add(0.5, Stack(pid=pid, tid=pid, frames=frames))
    job = read_job(history)

    assert at_pipe(history, job, node_of(history, job, TRAINER), (LOADER, PEER), False) == left
