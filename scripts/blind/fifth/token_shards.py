"""FIELD
source: huggingface/datasets#6319 (map hangs for ever near its end; a process of the pool had been killed)
mechanism: the shards of the next epoch are tokenised by a pool; one of its processes is killed in a huge document (as by the OOM killer), the pool replaces it, its task is lost and map() waits for the result for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker, blocked_child, unknown
blame: none
twin: none
"""

import dataclasses
import multiprocessing as mp
import os
import random
import signal
import time

import torch
from torch import nn

WORDS = [f"w{n}" for n in range(800)]


@dataclasses.dataclass
class Config:
    batch: int = 16
    length: int = 32
    shards: int = 12
    workers: int = 2
    width: int = 48


def pool_init():
    signal.alarm(300)
    torch.set_num_threads(1)


def tokenize_shard(job):
    """One shard of raw text to ids; very long documents are joined first."""
    shard, seed, huge = job
    rng = random.Random(seed)
    ids = []
    for document in range(60):
        text = " ".join(rng.choices(WORDS, k=120))
        if huge and document == 40:
            text = " ".join([text] * 2000)
            os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does when memory is out
        ids.extend(int(word[1:]) for word in text.split())
    time.sleep(0.05)
    return shard, ids


class Tiny(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), cfg.width)
        layer = nn.TransformerEncoderLayer(cfg.width, 4, 96, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(cfg.width, len(WORDS))

    def forward(self, ids):
        return self.out(self.body(self.embed(ids)))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.pool = mp.get_context("fork").Pool(cfg.workers, initializer=pool_init)
        self.model = Tiny(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), 5e-4)
        self.begin = time.monotonic()

    def prepare(self, epoch):
        late = time.monotonic() - self.begin > 8
        jobs = [(s, epoch * 1000 + s, late and s == 9) for s in range(self.cfg.shards)]
        if late:
            print("ONSET", flush=True)
        shards = self.pool.map(tokenize_shard, jobs, chunksize=1)
        ids = [i for _shard, part in sorted(shards) for i in part]
        count = len(ids) // self.cfg.length
        return torch.tensor(ids[: count * self.cfg.length]).view(count, -1)

    def fit(self):
        for epoch in range(10000):
            blocks = self.prepare(epoch)
            print(f"epoch {epoch}: {len(blocks)} blocks", flush=True)
            for number, ids in enumerate(blocks.split(self.cfg.batch)[:60]):
                logits = self.model(ids[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                if number % 20 == 0:
                    print(f"  {number} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    Trainer(Config()).fit()
