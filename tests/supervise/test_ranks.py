"""Jobs of several ranks: one launcher above them, or one launcher each."""

import importlib.util
import os
import select
import sys
from pathlib import Path

import pytest

from perfwatch.processes.control import ask, find_watcher
from perfwatch.recording.recording import load
from perfwatch_probes.readings import Steps
from tests.supervise.conftest import Launch, python

pytestmark = pytest.mark.live

WAITS = "import os, sys; print(os.getpid(), flush=True); open(sys.argv[1]).read()"
TRAINS = """
import os, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
os.listdir(os.environ["PERFWATCH_AGENT_DIR"]) and os.write(1, b"steps\\n")
dist.barrier()
open(os.environ["FIFO"]).read()
dist.destroy_process_group()
"""


def _when(control_of: int, roots: int, other_than: object = None) -> dict[str, object]:
    """The status of the watcher that follows so many roots, once there is one; not of the watcher with this pid."""
    for _ in range(400):
        control = find_watcher(control_of)
        try:
            status = ask(control, {"command": "status"}, 20.0) if control else {"roots": []}
        except OSError:  # that watcher is just ending; another one takes over
            continue
        if len(status["roots"]) == roots and status["watcher"] != other_than:
            return status
        select.select([], [], [], 0.05)
    raise AssertionError(f"no watcher with {roots} roots")


def test_one_launcher_per_rank_has_one_watcher_and_the_next_takes_over(launch: Launch, tmp_path: Path) -> None:
    """The first watches both children; when its own has ended, the second watches what is left."""
    fifos = [tmp_path / f"fifo-{rank}" for rank in range(2)]
    job = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(os.getpid()), "WORLD_SIZE": "2"}
    runs, children = [], []
    for rank, fifo in enumerate(fifos):
        os.mkfifo(fifo)
        runs.append(launch(*python(WAITS), str(fifo), env={**job, "RANK": str(rank)}))
        children.append(int(runs[-1].line()))
        first = _when(children[0], rank + 1)
    assert first["roots"] == children
    fifos[0].write_text("go")
    assert runs[0].end() == 0
    second = _when(children[1], 1, other_than=first["watcher"])

    assert second["roots"] == children[1:]
    fifos[1].write_text("go")
    assert runs[1].end() == 0


@pytest.mark.end_to_end
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_steps_of_both_ranks_under_torchrun_are_counted(launch: Launch, tmp_path: Path) -> None:
    """The agent reaches the ranks through torchrun."""
    program, fifo = tmp_path / "train.py", tmp_path / "fifo"
    program.write_text(TRAINS)
    os.mkfifo(fifo)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run = launch(*torchrun, str(program), env={"FIFO": str(fifo)})
    assert [run.line(), run.line()] == ["steps", "steps"]
    status = _when(run.pid, 1)
    keep = os.open(fifo, os.O_WRONLY)
    control = find_watcher(run.pid)
    assert control is not None
    ask(control, {"command": "verdict"}, 20.0)
    os.close(keep)
    assert run.end() == 0
    steps = {
        record.reading.pid: record.reading.count
        for record in load(Path(str(status["session"]))).records
        if isinstance(record.reading, Steps)
    }

    assert sorted(steps.values()) == [30, 30]
