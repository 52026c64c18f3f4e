"""FIELD
source: huggingface/peft#2894 (gc.collect() after each step slows the training down considerably)
mechanism: a helper against a memory leak runs a full collection after every step, while the program keeps a graph of a few hundred thousand Python objects in memory
needs: none
ranks: 1
onset: printed
state: slow
cause: garbage_collection
blame: release_memory ()
twin: none
"""
import gc
import random
import signal
import time
from contextlib import contextmanager

import psutil
import torch
from torch import nn


class Paper:
    __slots__ = ("cites", "key", "year")

    def __init__(self, key, year):
        self.key, self.year, self.cites = key, year, []


def build_citations(count=160_000, degree=4, seed=7):
    rng = random.Random(seed)
    papers = [Paper(i, 1990 + i * 35 // count) for i in range(count)]
    for paper in papers[1:]:
        paper.cites.extend(papers[rng.randrange(paper.key)] for _ in range(degree))
    return papers


def walks(papers, rng, batch, length):
    rows = []
    for _ in range(batch):
        node, row = papers[rng.randrange(len(papers) // 2, len(papers))], []
        for _ in range(length):
            row.append(node.key)
            node = rng.choice(node.cites) if node.cites else papers[rng.randrange(len(papers))]
        rows.append(row)
    return torch.tensor(rows)


class SkipGram(nn.Module):
    def __init__(self, buckets, dim):
        super().__init__()
        self.table, self.context = nn.Embedding(buckets, dim), nn.Embedding(buckets, dim)
        self.buckets = buckets

    def forward(self, walk):
        walk = walk % self.buckets
        centre, near = self.table(walk[:, :-1]), self.context(walk[:, 1:])
        noise = self.context(torch.randint(0, self.buckets, walk[:, 1:].shape))
        good, bad = (centre * near).sum(-1), (centre * noise).sum(-1)
        return -(nn.functional.logsigmoid(good) + nn.functional.logsigmoid(-bad)).mean()


def release_memory():
    gc.collect()
    return psutil.Process().memory_info().rss >> 20


@contextmanager
def timer(sums, name):
    begin = time.perf_counter()
    yield
    sums[name] = sums.get(name, 0.0) + time.perf_counter() - begin


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    rng = random.Random(1)
    papers = build_citations()
    net = SkipGram(20_000, 32)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    begun, told, sums = time.monotonic(), False, {}
    for step in range(10_000_000):
        with timer(sums, "walk"):
            walk = walks(papers, rng, 64, 12)
        with timer(sums, "update"):
            loss = net(walk)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rss = release_memory()
        if step % 100 == 0:
            print(f"step {step:6d} loss {loss.item():.4f} rss {rss} MiB", {k: round(v, 2) for k, v in sums.items()}, flush=True)
        if not told and time.monotonic() - begun > 11:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
