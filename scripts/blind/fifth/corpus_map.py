"""FIELD
source: huggingface/transformers#28998, huggingface/datasets#2243 (map seems to hang at 60 %, but one process is still at work)
mechanism: looks like a lost task in pool.map(): between two epochs the main process waits for a long tokenising map whose single process is at work all the time and would end after some four minutes
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""

import collections
import multiprocessing as mp
import random
import signal
import time

import torch
from torch import nn

LETTERS = "etaoinshrdlu"


def init_process():
    signal.alarm(300)
    torch.set_num_threads(1)


def make_document(seed, words=150):
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(words)]


def bpe_encode(words, merges):
    """Greedy byte-pair encoding, plain Python: slow, and correct."""
    vocab = {pair: rank for rank, pair in enumerate(merges)}
    pieces = []
    for word in words:
        parts = list(word)
        while len(parts) > 1:
            pairs = [(vocab.get(pair, 10**9), at) for at, pair in enumerate(zip(parts, parts[1:]))]
            rank, at = min(pairs)
            if rank == 10**9:
                break
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
        pieces.extend(parts)
    return pieces


def map_shard(job):
    first, count, merges = job
    histogram, ids = collections.Counter(), []
    for seed in range(first, first + count):
        pieces = bpe_encode(make_document(seed), merges)
        histogram.update(pieces)
        ids.append([hash(piece) % 512 for piece in pieces[:48]])
    return ids, histogram.most_common(20)


class Corpus:
    def __init__(self, pool):
        self.pool = pool
        rng = random.Random(0)
        self.merges = list({(rng.choice(LETTERS), rng.choice(LETTERS)) for _ in range(100)})
        self.cost = None

    def build(self, shards, per_shard=40):
        jobs = [(1000 * s, per_shard, self.merges) for s in range(shards)]
        start = time.monotonic()
        parts = self.pool.map(map_shard, jobs, chunksize=1)
        self.cost = (time.monotonic() - start) / shards
        rows = [row for ids, _common in parts for row in ids if len(row) == 48]
        return torch.tensor(rows[:1600])


def epochs(model, opt, blocks, seconds):
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        ids = blocks[torch.randint(len(blocks), (8,))]
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    pool = mp.get_context("fork").Pool(1, initializer=init_process)
    corpus = Corpus(pool)
    model = nn.Sequential(nn.Embedding(512, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 512))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    epochs(model, opt, corpus.build(6), 8)
    shards = max(6, int(240 / corpus.cost))
    print(f"stage 2: mapping {shards} shards, about {shards * corpus.cost:.0f} s", flush=True)
    print("ONSET", flush=True)
    epochs(model, opt, corpus.build(shards), 60)


if __name__ == "__main__":
    main()
