"""FIELD
source: own
mechanism: before training rank 0 builds the token cache in plain Python, the two others wait in a barrier until it is there
needs: none
ranks: 3
onset: printed
state: busy
cause: waiting_on_work, computing_on_host, starting
blame: none
twin: ready_flag
"""
import collections
import contextlib
import datetime
import os
import random
import signal
import tempfile
import time

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()


@contextlib.contextmanager
def main_process_first():
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


def merge_pairs(words, pair):
    out = []
    for word in words:
        merged, i = [], 0
        while i < len(word):
            if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
                merged.append(word[i] + word[i + 1])
                i += 2
            else:
                merged.append(word[i])
                i += 1
        out.append(merged)
    return out


def build_cache(seconds):
    rng = random.Random(0)
    words = [list("".join(rng.choices("etaoinshrdlu", k=rng.randint(3, 9)))) for _ in range(30_000)]
    end, merges = time.monotonic() + seconds, []
    while time.monotonic() < end:
        pairs = collections.Counter()
        for word in words:
            pairs.update(zip(word, word[1:]))
        if not pairs:
            words = [list("".join(word)) for word in words]
            continue
        best = max(pairs, key=pairs.get)
        merges.append(best)
        words = merge_pairs(words, best)
    return len(merges)


if rank == 0:
    print("ONSET", flush=True)
with main_process_first():
    if rank == 0:
        print("merges", build_cache(150), flush=True)
net = torch.nn.EmbeddingBag(4096, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    loss = net(torch.randint(0, 4096, (64, 32))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(net.weight.grad)
    optimizer.step()
