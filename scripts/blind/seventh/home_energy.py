"""FIELD
source: NovaSky-AI/SkyRL#1105 (a second writer of the SQLite file waits up to busy_timeout for the first one's transaction)
mechanism: rank 0 writes its loss to a SQLite file in each step; a compaction job, a child, then keeps a write transaction open
    for 1.3 s at a time with a short gap, so each insert waits inside SQLite's busy handler and rank 1 waits for rank 0
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: slow
cause: contended_lock, straggling_rank, slow_output
blame: rank 0
twin: none
"""
import ctypes
import multiprocessing as mp
import os
import signal
import sqlite3
import tempfile
import time
from datetime import datetime

import torch
import torch.distributed as dist
from torch import nn

SCHEMA = "create table if not exists curve (step integer primary key, loss real, at text); create table if not exists hourly (h, loss)"


def child():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)


def compact(path, begins_after):
    """Rolls the curve up into hourly means; one transaction per roll-up, and the disk of the NAS takes its time."""
    child()
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    time.sleep(begins_after)
    while db.execute("select count(*) from curve").fetchone()[0] < 120:  # not worth it yet
        time.sleep(1)
    print("ONSET", flush=True)
    while True:
        db.execute("begin immediate")
        db.execute("delete from hourly")
        db.execute("insert into hourly select substr(at, 1, 13), avg(loss) from curve group by 1")
        time.sleep(1.3)
        db.execute("commit")
        time.sleep(0.12)


class Journal:
    def __init__(self, path):
        self.db = sqlite3.connect(path, timeout=120)
        self.db.execute("pragma synchronous = off")
        self.db.executescript(SCHEMA)

    def write(self, step, loss):
        with self.db:
            self.db.execute("insert into curve values (?, ?, ?)", (step, loss, datetime.now().isoformat()))


class Household(nn.Module):
    """Splits the reading of a meter into appliances."""

    def __init__(self, appliances=6):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv1d(1 if i == 0 else 32, 32, 7, padding=3 * 2**i, dilation=2**i) for i in range(4))
        self.out = nn.Conv1d(32, appliances, 1)

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.out(x)


def readings(generator):
    parts = (torch.rand(12, 6, 1, generator=generator) > 0.5) * torch.rand(12, 6, 160, generator=generator).cumsum(2) / 40
    return parts.sum(1, keepdim=True), parts


def run(rank, store, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(5)
    model = nn.parallel.DistributedDataParallel(Household())
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    journal = Journal(path) if rank == 0 else None
    generator, step = torch.Generator().manual_seed(rank), 0
    while True:
        total, parts = readings(generator)
        loss = nn.functional.mse_loss(model(total), parts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if journal:
            journal.write(step, loss.item())
            if step % 20 == 0:
                print(f"{datetime.now():%H:%M:%S} step {step} loss {loss.item():.4f}", flush=True)


def second(store, path):
    child()
    run(1, store, path)


if __name__ == "__main__":
    signal.alarm(300)
    folder = tempfile.mkdtemp(prefix="energy_")
    store, path = os.path.join(folder, "store"), os.path.join(folder, "curve.sqlite")
    Journal(path).db.close()
    context = mp.get_context("fork")
    context.Process(target=second, args=(store, path), daemon=True).start()
    context.Process(target=compact, args=(path, 18.0), daemon=True).start()
    run(0, store, path)
