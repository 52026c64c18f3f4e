"""FIELD
source: python/cpython#150494 (what tracemalloc costs) and yandex/ch-backup#108 (a snapshot takes 5 to 10 s)
mechanism: a memory watch that was added to look for a leak keeps tracemalloc on with 25 frames and compares two snapshots every few steps
needs: cpu
ranks: 1
onset: printed
state: slow
cause: debug_apis_on
blame: check (leak_watch.py)
twin: none
"""
import random
import time
import tracemalloc

import torch
import torch.nn as nn

torch.set_num_threads(1)


class MemoryWatch:
    def __init__(self, every):
        self.every = every
        self.previous = None

    def start(self):
        tracemalloc.start(25)

    def check(self, step):
        if not tracemalloc.is_tracing() or step % self.every:
            return
        snapshot = tracemalloc.take_snapshot()
        if self.previous is not None:
            top = snapshot.compare_to(self.previous, "traceback")[:3]
            print("memory " + " ".join(f"{s.size_diff / 1024:+.0f}K" for s in top), flush=True)
        self.previous = snapshot


class ReplayTable:
    def __init__(self, capacity):
        self.rows = {}
        self.capacity = capacity

    def add(self, step):
        for k in range(200):
            key = (step * 200 + k) % self.capacity
            self.rows[key] = {"obs": [random.random() for _ in range(16)], "action": key % 4, "meta": (step, str(key))}

    def sample(self, n):
        picked = random.choices(list(self.rows.values()), k=n)
        return torch.tensor([r["obs"] for r in picked]), torch.tensor([r["action"] for r in picked])


def main():
    table, watch = ReplayTable(20000), MemoryWatch(every=4)
    policy = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    started, step = time.time(), 0
    while time.time() - started < 600:
        if not tracemalloc.is_tracing() and time.time() - started > 10:
            watch.start()
            print("ONSET", flush=True)
        table.add(step)
        obs, action = table.sample(256)
        loss = nn.functional.cross_entropy(policy(obs), action)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        watch.check(step)
        if step % (8 if tracemalloc.is_tracing() else 200) == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
