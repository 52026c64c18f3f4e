"""FIELD
source: pytorch/pytorch#38174 (Join API for uneven inputs), own: used as intended
mechanism: none: uneven shards under DDP's join(), local metrics merged by all_gather_object at the end of each epoch, early stop decided together
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: healthy
cause: any
blame: none
twin: none
"""
import logging
import random
import signal
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

SHARDS = {0: 5200, 1: 5000}
LOG = logging.getLogger("sales")


class Panel(TensorDataset):
    def __getitems__(self, rows):
        time.sleep(0.006)  # a row group of the parquet file
        return [self[i] for i in rows]


def load(rank, tag):
    g = torch.Generator().manual_seed(hash((rank, len(tag))) % 1000)
    n = SHARDS[rank] if tag == "train" else 256
    x = torch.randn(n, 30, 24, generator=g)
    y = x[:, -7:].mean((1, 2)) * 4 + 0.1 * torch.randn(n, generator=g)
    return Panel(x, y)


class Forecaster(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.rnn = nn.GRU(24, width, num_layers=2, batch_first=True)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1]).squeeze(-1)


def merged(**local):
    """Mean of each local metric over the ranks."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, local)
    return {k: statistics.fmean(d[k] for d in every) for k in local}


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    errors = [(model(x) - y).abs().mean().item() for x, y in DataLoader(data, 128)]
    model.train()
    return statistics.fmean(errors)


class Clock:
    def __init__(self, after):
        self.t0, self.after, self.rung = time.monotonic(), after, False

    def tick(self):
        if not self.rung and time.monotonic() - self.t0 > self.after:
            self.rung = True
            print("ONSET", flush=True)


def main(rank, world, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    clock = Clock(9)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    random.seed(0)
    train, val = load(rank, "train"), load(rank, "val")
    loader = DataLoader(train, batch_size=40, shuffle=True)
    model = DistributedDataParallel(Forecaster())
    opt = torch.optim.AdamW(model.parameters(), 4e-4, weight_decay=0.05)
    best, since = float("inf"), 0
    for epoch in range(400):
        seen, total = 0, 0.0
        with model.join():
            for i, (x, y) in enumerate(loader):
                loss = nn.functional.huber_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen, total = seen + 1, total + loss.item()
                if i % 40 == 0:
                    LOG.info("epoch %d batch %d/%d loss %.4f", epoch, i, len(loader), loss.item())
                if rank == 0:
                    clock.tick()
        m = merged(loss=total / seen, mae=evaluate(model.module, val), batches=seen)
        LOG.info("epoch %d %s", epoch, {k: round(v, 4) for k, v in m.items()})
        best, since = (m["mae"], 0) if m["mae"] < best else (best, since + 1)
        if since >= 100:  # the same on all ranks, as the metrics are merged
            break


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    mp.spawn(main, (2, port), nprocs=2, daemon=True)
