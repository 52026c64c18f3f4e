"""A ``perfwatch run`` in a container with its own /dev/shm and its own pids, seen from the node: its steps, by the node's own pids."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.processes.control import ArmedJob, find_place
from perfwatch_probes.guest import Guests
from perfwatch_probes.inner_pids import InnerPids
from perfwatch_probes.readings import Steps
from perfwatch_probes.steps import StepCounter
from tests.end_to_end.conftest import PERFWATCH, needs_root, until

pytestmark = [pytest.mark.live, needs_root()]

TRAINER = """
import time
import torch
weight = torch.nn.Parameter(torch.zeros(1))
sgd = torch.optim.SGD([weight], lr=0.1)
while True:
    weight.grad = torch.ones(1)
    sgd.step()
    time.sleep(0.02)
"""
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount")
RIGHTS = {"all of ours": (), "fewer": ("setpriv", "--bounding-set=-sys_admin,-sys_ptrace", "--inh-caps=-all")}


def descendants(pid: int) -> list[int]:
    """All processes below one, the deepest last."""
    found = [pid]
    for one in found:
        found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found[1:]


def inner(pid: int) -> int:
    """What a process is called in its own namespace."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")))


@pytest.fixture(params=RIGHTS)
def trainer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The pid, here, of a trainer in a container that has counted steps."""
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "train.py").write_text(TRAINER)
    run = [*RIGHTS[request.param], *PERFWATCH, "run", "--session", str(tmp_path / "session"), "--"]
    script = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    command = [*CONTAINER, "sh", "-c", script, "sh", *run, sys.executable, str(tmp_path / "train.py")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as container:

        def found() -> list[int]:
            assert container.poll() is None, container.stderr and container.stderr.read()
            return [
                pid for pid in descendants(container.pid)
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [str(tmp_path / "train.py").encode()]
            ]  # fmt: skip

        until(lambda: bool(found()))
        (pid,) = found()[:1]
        yield pid
        container.kill()


def place_of(pid: int) -> tuple[ArmedJob, StepCounter]:
    """Its place, once there are steps."""
    guests = Guests()
    until(
        lambda: (
            (armed := find_place(pid, guests=guests)) is not None
            and any("steps-" in one for one in armed.folder.names())
        )
    )
    armed = find_place(pid, guests=guests)
    assert armed is not None
    return armed, StepCounter(armed.folder, str)


def test_its_steps_are_counted_by_our_own_pids(trainer: int) -> None:
    """From the rank as from the command that has started it; the place lies in the container, and its roots are known to us."""
    armed, counter = place_of(trainer)
    (before,) = (one for one in counter.look() if isinstance(one, Steps))
    time.sleep(0.5)
    (after,) = (one for one in counter.look() if isinstance(one, Steps))
    launcher = armed.roots[0].launcher

    assert inner(trainer) != trainer
    assert (before.pid, after.pid, after.tid) == (trainer, trainer, trainer)
    assert after.count > before.count
    assert armed.folder.inside == trainer
    assert [root.pid for root in armed.roots] == [trainer]
    assert b"perfwatch" in Path(f"/proc/{launcher}/cmdline").read_bytes()
    assert place_of(launcher)[0].roots == armed.roots


def test_a_number_of_the_container_is_no_process_of_ours(trainer: int) -> None:
    """Only a process of the same namespace, with the start time that was written, is meant."""
    ticks = int(Path(f"/proc/{trainer}/stat").read_text().rpartition(")")[2].split()[19])
    numbers = InnerPids(trainer)

    assert numbers.outer(inner(trainer), ticks) == trainer
    assert numbers.outer(inner(trainer)) == trainer
    assert InnerPids(trainer).outer(inner(trainer), ticks + 1) is None
    assert InnerPids(os.getpid()).outer(inner(trainer), ticks) is None


def test_ps_knows_the_step(trainer: int) -> None:
    """``ps`` shows the step that a container's run has counted."""
    place_of(trainer)
    done = subprocess.run((*PERFWATCH, "ps", "--json"), capture_output=True, text=True, timeout=60)
    listed = json.dumps([one for one in json.loads(done.stdout)["jobs"] if str(trainer) in json.dumps(one)])

    assert re.search('"step": [1-9]', listed), listed
