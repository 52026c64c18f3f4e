"""FIELD
source: rwth-i6/returnn#1548 (one lock for the whole cache: the workers of a distributed job wait for each other)
mechanism: each rank rewrites a shared JSON table of token counts under one flock in every step; each holds the lock for a good part of a second and the others wait
needs: cpu
ranks: 3
onset: printed
state: slow
cause: contended_lock
blame: merge (vocab_counts.py)
twin: none
"""
import datetime
import fcntl
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
VOCAB = 120000


class SharedCounts:
    def __init__(self, root):
        self.path = Path(root) / "counts.json"
        self.guard = Path(root) / "counts.lock"

    def merge(self, counts):
        with open(self.guard, "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            table = json.loads(self.path.read_text()) if self.path.exists() else {f"token_{i:07d}": 1 for i in range(VOCAB)}
            for token, n in counts.items():
                table[token] = table.get(token, 0) + n
            fresh = self.path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(table))
            fresh.replace(self.path)
        return table


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank, world = dist.get_rank(), dist.get_world_size()
    place = [tempfile.mkdtemp(prefix="vocab_") if rank == 0 else None]
    dist.broadcast_object_list(place, src=0)
    counts = SharedCounts(place[0])
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(4096, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    rng = np.random.default_rng(rank)
    started, weights = time.time(), torch.ones(64)
    for step in range(100000):
        tokens = rng.zipf(1.2, size=(32, 80)) % VOCAB
        if step >= 500:
            if step == 500 and rank == 0:
                print("ONSET", flush=True)
            table = counts.merge(Counter(f"token_{t:07d}" for t in tokens.flatten()))
            weights = torch.tensor([table[f"token_{i:07d}"] for i in range(64)], dtype=torch.float).rsqrt()
        x = torch.from_numpy(tokens % 4096)
        loss = nn.functional.cross_entropy(model(x), x[:, 0] % 64, weight=weights)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.tensor([time.time() - started])])
        dist.all_reduce(flat)
        parts = flat[:-1].split([p.numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts):
            p.grad.copy_(part.view_as(p) / world)
        opt.step()
        if rank == 0 and step % (100 if step < 500 else 5) == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if flat[-1] / world > 600:
            break


if __name__ == "__main__":
    main()
