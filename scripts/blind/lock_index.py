"""FIELD
source: own (dense retrieval with a refreshed negative index, as in ANCE: the refresher owns the index while it rebuilds it)
mechanism: the training thread waits for the index lock, whose holder is a thread that builds a neighbour graph for minutes
needs: cpu
ranks: 1
onset: printed
state: busy
cause: waiting_on_work
blame: none
twin: none
"""
import threading
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


class NegativeIndex:
    def __init__(self, dim, neighbours=16):
        self.lock, self.building = threading.Lock(), threading.Event()
        self.dim, self.k = dim, neighbours
        self.graph = None

    def rebuild(self, vectors, rounds, max_seconds):
        with self.lock:
            self.building.set()
            rng, n, began = np.random.default_rng(0), len(vectors), time.time()
            graph = rng.integers(0, n, (n, self.k))
            for _ in range(rounds):
                for lo in range(0, n, 256):
                    rows = np.arange(lo, min(lo + 256, n))
                    pool = np.concatenate([graph[rows], graph[graph[rows]].reshape(len(rows), -1)], 1)
                    d = ((vectors[pool] - vectors[rows][:, None]) ** 2).sum(-1)
                    d[pool == rows[:, None]] = np.inf
                    graph[rows] = np.take_along_axis(pool, np.argsort(d, 1)[:, :self.k], 1)
                    if time.time() - began > max_seconds:
                        self.graph = graph
                        return
            self.graph = graph

    def negatives(self, ids):
        with self.lock:
            return self.graph[ids, np.random.randint(0, self.k, len(ids))]


def main():
    passages = torch.randn(60_000, 64)
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 48))
    opt = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
    index = NegativeIndex(48)
    with torch.no_grad():
        index.rebuild(encoder(passages[:2000]).numpy(), rounds=1, max_seconds=5)
    upper, refresher = 2000, None
    for step in range(2401):
        if step == 1200:
            with torch.no_grad():
                vectors = encoder(passages).numpy()
            index.building.clear()
            refresher = threading.Thread(target=index.rebuild, args=(vectors, 200, 390), name="refresh")
            refresher.start()
            upper = len(passages)
            index.building.wait()
            print("ONSET", flush=True)
        ids = np.random.randint(0, upper, 64)
        q, p, n = encoder(passages[ids] + 0.1 * torch.randn(64, 64)), encoder(passages[ids]), encoder(passages[index.negatives(ids)])
        logits = torch.stack([(q * p).sum(1), (q * n).sum(1)], 1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 200 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    refresher.join()


if __name__ == "__main__":
    main()
