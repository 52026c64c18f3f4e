"""Ranks that a program spawns and numbers itself, with workers of every start method: whose worker it is shows in no variable."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch_probes.group_variables import free_port
from tests.end_to_end.conftest import PATIENCE_SECONDS, PERFWATCH, until

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

class Photos(Dataset):
    def __init__(self, rank, onset):
        self.rank, self.onset = rank, onset
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        if self.rank == 1 and index == 40:
            self.unzip()
        return torch.randn(16)
    def unzip(self):
        open(self.onset, "w").close()
        time.sleep(10**6)

def train(rank, port, onset, method):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    for batch in DataLoader(Photos(rank, onset), batch_size=4, num_workers=1, multiprocessing_context=method):
        net(batch).square().mean().backward()

if __name__ == "__main__":
    mp.spawn(train, sys.argv[1:], nprocs=2)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_worker_of_the_rank_that_does_not_come_is_named(method: str, tmp_path: Path) -> None:
    """Rank 0 waits in the reduction, rank 1 for its worker, which sleeps."""
    program, onset = tmp_path / "train.py", tmp_path / "onset"
    program.write_text(PROGRAM)
    start = [sys.executable, str(program), str(free_port()), str(onset), method]
    with subprocess.Popen(start, stdin=subprocess.DEVNULL, start_new_session=True) as job:
        try:
            until(onset.exists)
            attach = [*PERFWATCH, "attach", str(job.pid), "--json"]
            done = subprocess.run(attach, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
    said = json.loads(done.stdout)
    first = said["culprits"][0]

    assert said["state"] == "hung", said["summary"]
    assert said["cause"] in ("stalled_collective", "stuck_worker")  # rank 0 may not have come to the reduction yet
    assert said["coverage"] == {"ranks_seen": 2, "world_size": 2}
    assert (first["rank"], first["frame"]["function"]) == (1, "unzip")
    assert first["worker_pid"] not in (None, first["pid"])
