"""FIELD
source: own: shards are rotated at every checkpoint under a file lock; a helper process of a rank keeps the lock
mechanism: all ranks meet in monitored_barrier after each checkpoint; rank 1 must first take the flock of its shard,
    whose descriptor a compressing helper that it started has inherited and keeps open while it waits for its next job
    on a pipe
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: stalled_collective, waiting_for_file
blame: rank 1
twin: none
"""
import fcntl
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

HELPER = """
import signal, sys, zlib
signal.alarm(300)
for line in sys.stdin:
    data = open(line.strip(), "rb").read()
    open(line.strip() + ".z", "wb").write(zlib.compress(data, 1))
    print("done", flush=True)
"""


class Rotation:
    def __init__(self, root: pathlib.Path, rank: int):
        self.root, self.rank, self.helper = root, rank, None

    def _lock(self):
        descriptor = os.open(self.root / f"shard{self.rank}.lock", os.O_CREAT | os.O_RDWR)
        os.set_inheritable(descriptor, True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def _compress(self, path: pathlib.Path):
        if self.helper is None:  # large shards only: started when first needed
            self.helper = subprocess.Popen(
                [sys.executable, "-c", HELPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                close_fds=False,
            )
        self.helper.stdin.write(f"{path}\n")
        self.helper.stdin.flush()
        self.helper.stdout.readline()

    def turn(self, step: int, rows):
        descriptor = self._lock()
        try:
            path = self.root / f"shard{self.rank}-{step % 2}.json"
            path.write_text(json.dumps(rows))
            if path.stat().st_size > 60_000:
                self._compress(path)
        finally:
            os.close(descriptor)


def rank_main(rank, world, port, root):
    signal.alarm(300)
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world, timeout=timedelta(hours=1)
    )
    net = nn.Sequential(nn.Conv1d(4, 32, 5), nn.ReLU(), nn.Conv1d(32, 32, 5), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    net = nn.parallel.DistributedDataParallel(nn.Sequential(net, nn.Linear(32, 2)))
    opt = torch.optim.SGD(net.parameters(), 0.02)
    rotation, rows = Rotation(root, rank), []
    for step in range(1, 100_000):
        x = torch.randn(32, 4, 128)
        y = (x.mean((1, 2)) > 0).long()
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        rows.extend([step, loss.item(), *x[0, 0, : 16 if rank == 1 else 2].tolist()])
        time.sleep(0.04)
        if step % 40 == 0:
            if rank == 1 and rotation.helper is not None:
                print("ONSET", flush=True)
            rotation.turn(step, rows)
            dist.monitored_barrier(timeout=timedelta(hours=1))
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} shards rotated", flush=True)


def main(world=3):
    signal.alarm(300)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="rotate_") as root:
        ranks = [context.Process(target=rank_main, args=(r, world, port, pathlib.Path(root))) for r in range(world)]
        [r.start() for r in ranks]
        [r.join() for r in ranks]


if __name__ == "__main__":
    main()
