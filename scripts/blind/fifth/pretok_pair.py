"""FIELD
source: axolotl-ai-cloud/axolotl#2684 (tokenizing on rank 0 for many minutes while the other ranks sit in a barrier)
mechanism: stage 1 ends; for stage 2 rank 0 runs BPE over the corpus in a pool, rank 1 waits in the barrier
    ("main process first") until the cache is there
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import multiprocessing
import os
import random
import signal
import socket
import tempfile
import time
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS = [a + b + c for a in ("ka", "shi", "ro", "mun") for b in ("tel", "or", "an", "ix") for c in ("de", "st", "ing")]


def learn_merges(seed=0):
    rng = random.Random(seed)
    return {(w[i], w[i + 1]): rng.random() for w in WORDS for i in range(len(w) - 1)}


def bpe(word, ranks):
    parts = list(word)
    while len(parts) > 1:
        pairs = [(ranks.get((parts[i][-1], parts[i + 1][0]), 9.0), i) for i in range(len(parts) - 1)]
        score, i = min(pairs)
        if score > 0.8:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [hash(p) % 512 for p in parts]


def tokenize_document(number):
    signal.alarm(300)
    rng, ranks = random.Random(number), learn_merges()
    text = [rng.choice(WORDS) + rng.choice(WORDS) for _ in range(2500)]
    return [t for word in text for t in bpe(word, ranks)]


@contextmanager
def main_process_first(rank):
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


def load_or_tokenize(path, documents):
    if os.path.exists(path):
        return np.load(path)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        out = [np.array(t[:256]) for t in pool.imap(tokenize_document, range(documents), chunksize=4)]
    np.save(path, np.stack([np.resize(t, 256) for t in out]))
    return np.load(path)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.rnn = nn.GRU(64, 64, batch_first=True)
        self.out = nn.Linear(64, 512)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def run_stage(name, model, opt, tokens, seconds, rank):
    stop, step = time.time() + seconds, 0
    while True:
        go = torch.tensor([float(time.time() < stop)])
        dist.broadcast(go, 0)
        if not go.item():
            return
        ids = torch.from_numpy(tokens[np.random.randint(len(tokens), size=8), :64]).long()
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0 and step % 50 == 0:
            print(f"[{name}] step {step} loss {loss.item():.3f}", flush=True)


def worker(rank, port, cache):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = DistributedDataParallel(LM())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    run_stage("stage1", model, opt, np.random.randint(512, size=(64, 256)), 7, rank)
    if rank == 0:
        print("Tokenizing Prompts (num_proc=1)", flush=True)
        print("ONSET", flush=True)
    with main_process_first(rank):
        tokens = load_or_tokenize(os.path.join(cache, "stage2.npy"), 40_000)
    run_stage("stage2", model, opt, tokens, 3600, rank)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(free, folder), nprocs=2)
