"""FIELD
source: lightseekorg/TorchSpec#13 (ranks get sequences of very different length and wait for the longest at the all-reduce)
mechanism: the second stage shards a corpus that is sorted by length in contiguous pieces; the last rank always has the longest sequences and the two others wait for it in each step
needs: cpu
ranks: 3
onset: printed
state: slow
cause: straggling_rank
blame: rank 2
twin: none
"""
import datetime
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self, vocab=800, dim=96, tags=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def corpus(n=3000):
    rng = np.random.default_rng(4)
    lengths = np.clip(rng.lognormal(3.0, 1.3, n).astype(int), 6, 900)
    return [torch.from_numpy(rng.integers(1, 800, size=k)) for k in lengths]


def shard(docs, rank, world, by_length):
    if by_length:
        docs = sorted(docs, key=len)
        size = len(docs) // world
        return docs[rank * size:(rank + 1) * size]
    return [d[:48] for d in docs[rank::world]]


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    docs = corpus()
    rng = np.random.default_rng(rank)
    started = time.time()
    for stage, steps in ((1, 250), (2, 20000)):
        mine = shard(docs, rank, world, by_length=stage == 2)
        if stage == 2 and rank == 2:
            print("ONSET", flush=True)
        for step in range(steps):
            batch = nn.utils.rnn.pad_sequence([mine[i] for i in rng.integers(len(mine), size=16)], batch_first=True)
            logits = model(batch)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), (batch % 12).flatten())
            opt.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.tensor([time.time() - started])])
            dist.all_reduce(flat)
            offset = 0
            for p in model.parameters():
                p.grad.copy_(flat[offset:offset + p.numel()].view_as(p) / world)
                offset += p.numel()
            opt.step()
            if rank == 0 and step % 20 == 0:
                print(f"stage {stage} step {step} loss {loss.item():.3f}", flush=True)
            if flat[-1] / world > 600:
                return


if __name__ == "__main__":
    main()
