"""FIELD
source: own: two ranks of a language model that refresh their subword vocabulary in the middle of the run
mechanism: rank 0 learns byte-pair merges in pure Python for minutes and prints nothing; rank 1 waits in the store for the key under which the merges are published
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: busy
cause: computing_on_host,waiting_on_work
blame: none
twin: none
"""
import collections
import json
import os
import random
import signal
import socket
import string
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

MERGES = 4500


def corpus(seed, words=9000):
    rng = random.Random(seed)
    stems = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 5))) for _ in range(600)]
    counted = collections.Counter("".join(rng.choices(stems, k=rng.randint(1, 4))) for _ in range(words))
    return {tuple(w): n for w, n in counted.items()}


def count_pairs(words):
    pairs = collections.Counter()
    for word, n in words.items():
        for pair in zip(word, word[1:], strict=False):
            pairs[pair] += n
    return pairs


def apply(word, pair):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def learn(words, merges):
    """The textbook's algorithm: count all pairs, merge the most frequent, again."""
    learned = []
    while len(learned) < merges:
        pairs = count_pairs(words)
        if not pairs:
            break
        best = max(pairs, key=pairs.get)
        words = collections.Counter({apply(w, best): n for w, n in words.items()})
        learned.append(best)
    return learned


class Vocabulary:
    def __init__(self, store, rank):
        self.store, self.rank, self.generation = store, rank, 0

    def refresh(self, seed, merges, patience):
        self.generation += 1
        key = f"merges/{self.generation}"
        if self.rank == 0:
            self.store.set(key, json.dumps(learn(corpus(seed), merges)))
        else:
            self.store.wait([key], timedelta(seconds=patience))
        merged = json.loads(self.store.get(key))
        return 26 + len(merged)


class Lstm(nn.Module):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(vocab, d), nn.LSTM(d, d, batch_first=True), nn.Linear(d, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def phase(rank, vocab, seconds):
    net = nn.parallel.DistributedDataParallel(Lstm(vocab))
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    gen = torch.Generator().manual_seed(rank)
    step, begin = 0, time.monotonic()
    go_on = torch.ones(1)
    while go_on.item():
        time.sleep(0.012)  # the shard's reader
        x = torch.randint(0, vocab, (8, 25), generator=gen).sort(1).values
        loss = nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 20 == 0:
            go_on.fill_(time.monotonic() - begin < seconds)
            dist.broadcast(go_on, 0)
        if rank == 0 and step % 200 == 0:
            print(f"vocab {vocab} step {step} loss {loss.item():.3f}", flush=True)


def run(rank, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(hours=1))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(hours=1))
    vocabulary = Vocabulary(dist.PrefixStore("vocabulary", store), rank)
    vocab = vocabulary.refresh(0, 5, 60)
    for generation in range(1, 100):
        phase(rank, vocab, 15)
        if rank == 0:
            print("refreshing the vocabulary", flush=True)
            print("ONSET", flush=True)
        vocab = vocabulary.refresh(generation, MERGES, 7200)


if __name__ == "__main__":
    signal.alarm(300)
    os.environ["OMP_NUM_THREADS"] = "1"
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    mp.start_processes(run, (port,), nprocs=2, daemon=True, start_method="fork")
