"""FIELD
source: own: statistics lock held across a bounded queue's put(), with monitored_barrier between epochs
mechanism: on rank 1 the training thread holds the stats lock while it puts into a full queue; the sink thread needs that lock before it can take the next item; the others wait in monitored_barrier
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: deadlocked_locks,stalled_collective
blame: rank 1
twin: none
"""
import collections
import contextlib
import json
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class EventSink:
    def __init__(self, path, flush_every=5):
        self.lock = threading.Lock()
        self.events = queue.Queue(maxsize=64)
        self.counts = collections.Counter()
        self.path, self.flush_every = path, flush_every
        threading.Thread(target=self._drain, daemon=True, name="event-sink").start()

    def record(self, kind, **fields):
        with self.lock:
            self.counts[kind] += 1
            self.events.put({"kind": kind, "n": self.counts[kind], **fields})

    def _drain(self):
        with open(self.path, "w") as f:
            while True:
                item = self.events.get()
                f.write(json.dumps(item) + "\n")
                if item["n"] % self.flush_every == 0:
                    f.flush()
                    time.sleep(0.01)
                    with self.lock:
                        item["totals"] = dict(self.counts)


class Bandit(nn.Module):
    def __init__(self, arms=10, ctx=20):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(ctx, 64), nn.Tanh(), nn.Linear(64, arms))

    def forward(self, x):
        return self.body(x)


@contextlib.contextmanager
def process_group(rank, world, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    yield
    dist.destroy_process_group()


def epoch(model, opt, sink, rank, number):
    total = 0.0
    for _ in range(25):
        ctx = torch.randn(64, 20)
        time.sleep(0.02)
        logits = model(ctx)
        arm = torch.distributions.Categorical(logits=logits).sample()
        reward = (arm == ctx[:, :10].argmax(1)).float()
        loss = (nn.functional.cross_entropy(logits, arm, reduction="none") * (reward - 0.1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += reward.mean().item()
        sink.record("step", loss=loss.item())
    if rank == 1 and number == 12:
        # the outlier report of a bad day: one event per outlier
        print("ONSET", flush=True)
        for i in range(500):
            sink.record("outlier", index=i)
    return total / 25


def main(rank, world, port, tmp):
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    with process_group(rank, world, port):
        model = nn.parallel.DistributedDataParallel(Bandit())
        opt = torch.optim.Adam(model.parameters(), 1e-3)
        sink = EventSink(os.path.join(tmp, f"events{rank}.jsonl"))
        for number in range(10000):
            reward = epoch(model, opt, sink, rank, number)
            dist.monitored_barrier(timeout=timedelta(minutes=30))
            if rank == 0:
                print(f"epoch {number} mean reward {reward:.3f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as srv:
        p = srv.getsockname()[1]
    with tempfile.TemporaryDirectory() as d:
        mp.spawn(main, (3, p, d), nprocs=3, daemon=True)
