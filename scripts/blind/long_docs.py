"""FIELD
source: own (document shards that were split by count, not by length)
mechanism: rank 2 has the long documents; its step takes several seconds and the others wait for it in every all-reduce
needs: cpu
ranks: 3
onset: printed
state: slow
cause: straggling_rank
blame: rank 2
twin: none
"""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self, vocab=3000, width=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 256, batch_first=True, dropout=0.0) for _ in range(3))
        self.head = nn.Linear(width, 8)

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


def shard(rank, truncate):
    gen = torch.Generator().manual_seed(rank)
    typical = 1200 if rank == 2 else 90
    while True:
        length = min(truncate, int(typical * (0.8 + 0.4 * torch.rand((), generator=gen))))
        yield torch.randint(0, 3000, (10, length), generator=gen), torch.randint(0, 8, (10,), generator=gen)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for phase, truncate, seconds in [("short", 64, 9), ("full", 4096, 440)]:
        if phase == "full" and rank == 0:
            print("ONSET", flush=True)
        until, step = time.time() + seconds, 0
        stop = torch.zeros(1)
        for ids, labels in shard(rank, truncate):
            loss = nn.functional.cross_entropy(model(ids), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            stop.fill_(float(time.time() > until))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if rank == 0 and (phase == "full" or step % 50 == 0):
                print(f"{phase} step {step} loss {loss.item():.3f}", flush=True)
            if stop.item():
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
