"""FIELD
source: own
mechanism: looks like a file lock that is never released: rank 1 blocks in flock on the cache of the bin edges; rank 0 holds
    that lock and computes them, a bootstrap of quantiles over all columns that takes minutes
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""

import fcntl
import multiprocessing as mp
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

COLUMNS, ROWS = 12, 400_000


def bin_edges(table, resamples=1500):
    """The median over bootstrap samples of the 64-quantiles of each column."""
    rng = np.random.default_rng(0)
    edges = []
    for column in table.T:
        drawn = [np.quantile(column[rng.integers(len(column), size=len(column))], np.linspace(0, 1, 65))
                 for _ in range(resamples)]
        edges.append(np.median(drawn, axis=0))
    return np.stack(edges)


def cached_edges(folder, table):
    path = folder / "edges.npy"
    with open(folder / "edges.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            np.save(path, bin_edges(table))
        return np.load(path)


class Tabular(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 96), nn.ELU(), nn.Linear(96, 96), nn.ELU(), nn.Linear(96, 2))

    def forward(self, x):
        return self.net(x)


def fit(rank, features, seconds):
    model = nn.parallel.DistributedDataParallel(Tabular(features.shape[1]))
    opt = torch.optim.Adagrad(model.parameters(), 0.05)
    end, step = time.monotonic() + seconds, 0
    while True:
        more = torch.tensor([time.monotonic() < end], dtype=torch.int32)
        dist.all_reduce(more, dist.ReduceOp.MIN)
        if not more.item():
            return
        x = features[torch.randint(len(features), (512,))]
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0 and step % 200 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def entry(rank, port, folder):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    table = np.load(folder / "table.npy", mmap_mode="r")
    fit(rank, torch.tensor(table[:20_000]), 15)
    if rank == 0:
        print("round 2 works on binned columns")
        print("ONSET", flush=True)
    else:
        time.sleep(0.5)
    edges = cached_edges(folder, table)
    binned = np.stack([np.searchsorted(e, c) for e, c in zip(edges, table[:20_000].T, strict=True)], axis=1)
    fit(rank, torch.tensor(binned, dtype=torch.float32) / 64, 3600)


def main():
    signal.alarm(300)
    folder = Path(tempfile.mkdtemp())
    np.save(folder / "table.npy", np.random.default_rng(2).gamma(2.0, size=(ROWS, COLUMNS)).astype("float32"))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    try:
        context = mp.get_context("fork")
        ranks = [context.Process(target=entry, args=(rank, port, folder)) for rank in (0, 1)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
