"""A real job of four gloo ranks on two hosts, whatever stands in for a host: a worker of rank 1, on the second, is stuck."""

import contextlib
import importlib.util
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.machines import PATIENCE_SECONDS

RANKS, CULPRIT = 4, 1
DRILL = "stalled_collective_loader.py"

# Starts a program on a host: its name, the words, what is in the environment besides, and where its output goes.
Start = Callable[[str, list[str], Mapping[str, str], Path], object]


@contextlib.contextmanager
def stuck_ranks(repository: Path, folder: Path, hosts: tuple[str, str], start: Start, port: str) -> Iterator[None]:
    """The job, from the moment on in which it is stuck. Every other rank is on the second host; whoever made the hosts ends it."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    fifo = folder / "onset"
    os.mkfifo(fifo)
    listener = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    for rank in range(RANKS):
        names = {**job, "RANK": str(rank), "LOCAL_RANK": str(rank // 2), "PERFWATCH_DRILL_FIFO": str(fifo)}
        command = [
            sys.executable,
            str(repository / "launcher" / "perfwatch" / "drills" / "programs" / DRILL),
            "--steps",
            "3",
        ]
        start(hosts[rank % 2], command, names, folder / f"{rank}.log")
    ready, _, _ = select.select([listener], [], [], PATIENCE_SECONDS)
    assert ready, "".join((folder / f"{rank}.log").read_text() for rank in range(RANKS))
    yield
    os.close(listener)


def assert_named(hosts: tuple[str, str], code: int, said: dict[str, Any]) -> None:
    """One verdict for the whole job: rank 1, its worker, its line, on the second host."""
    verdict = said["verdict"]
    seen = verdict["summary"], verdict["not_observed"], said["hosts"]

    assert (code, verdict["state"], verdict["cause"]) == (30, "hung", "stalled_collective"), seen
    assert verdict["coverage"] == {"ranks_seen": RANKS, "world_size": RANKS}
    assert {(one["rank"], one["host"]) for one in verdict["culprits"]} == {(CULPRIT, hosts[1])}
    assert all(one["worker_pid"] for one in verdict["culprits"])
    assert {(one["frame"]["function"], one["frame"]["file"].rpartition("/")[2]) for one in verdict["culprits"]} == {
        ("decode", DRILL)
    }
    assert {one["host"]: one["ranks"] for one in said["hosts"]} == {hosts[0]: [0, 2], hosts[1]: [1, 3]}
