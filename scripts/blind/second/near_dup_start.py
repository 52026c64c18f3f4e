"""FIELD
source: own
mechanism: before the first step the program signs all documents with MinHash to put near duplicates into one split; a pass over the data of some minutes that ends
needs: cpu
ranks: 1
onset: printed
state: busy
cause: starting, computing_on_host
blame: signature (near_dup_start.py)
twin: none
"""
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
PRIME = (1 << 31) - 1
rng = np.random.default_rng(11)
A, B = rng.integers(1, PRIME, size=(2, 512), dtype=np.int64)


class Reports:
    def __init__(self, n, vocab=5000):
        self.n = n
        self.vocab = vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = np.random.default_rng(i // 3)
        words = g.integers(0, self.vocab, size=700)
        words[:: 7 + i % 3] = i % self.vocab
        return words


def signature(words):
    shingles = np.unique((words[:-2] * 25000001 + words[1:-1] * 5003 + words[2:]) % PRIME)
    return ((shingles[:, None] * A + B) % PRIME).min(axis=0)


def split(reports, bands=4, budget=420):
    buckets, group, begun = {}, np.arange(len(reports)), time.time()
    for i in range(len(reports)):
        if i % 5000 == 0:
            print(f"signed {i}", flush=True)
        if time.time() - begun > budget:
            break
        for b, band in enumerate(signature(reports[i]).reshape(bands, -1)):
            first = buckets.setdefault((b, band.tobytes()), i)
            if first != i:
                group[i] = group[first]
    held_out = group % 10 == 0
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def main():
    reports = Reports(180000)
    print("ONSET", flush=True)
    train, test = split(reports)
    print(f"{len(train)} for training, {len(test)} held out", flush=True)
    model = nn.Sequential(nn.EmbeddingBag(5000, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    started, step = time.time(), 0
    while time.time() - started < 60:
        rows = rng.choice(train, 32)
        x = torch.from_numpy(np.stack([reports[i] for i in rows]))
        loss = nn.functional.cross_entropy(model(x), x[:, 1] % 8)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
