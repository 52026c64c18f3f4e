"""FIELD
source: lightseekorg/TorchSpec#13 (DP rank imbalance from variable sequence lengths)
mechanism: a sampler that sorts by length for little padding hands contiguous blocks to the ranks, so that rank 2 always gets the longest reviews and the others wait for it in all_reduce
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: slow
cause: straggling_rank
blame: rank 2
twin: none
"""
import collections
import random
import signal
import socket
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

Sample = collections.namedtuple("Sample", "tokens stars")


class Reviews(Dataset):
    def __init__(self, n=2400):
        rng = random.Random(4)
        self.lengths = [min(320, int(rng.lognormvariate(3.2, 1.1)) + 4) for _ in range(n)]
        self.seed = 11

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        toks = torch.randint(1, 1000, (self.lengths[i],), generator=g)
        return Sample(toks, toks[0] % 5)


class ByLength(Sampler):
    """Sorted by length, so that a batch holds reviews of one size; a block for each rank."""

    def __init__(self, lengths, rank, world):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        size = len(order) // world
        self.mine = order[rank * size:(rank + 1) * size]
        self.epoch = 0

    def __iter__(self):
        chunks = [self.mine[i:i + 16] for i in range(0, len(self.mine), 16)]
        random.Random(self.epoch).shuffle(chunks)
        self.epoch += 1
        return iter([i for c in chunks for i in c])

    def __len__(self):
        return len(self.mine)


class Rater(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(1000, 64)
        self.gru = nn.GRU(64, 96)
        self.out = nn.Linear(96, 5)

    def forward(self, seqs):
        packed = pack_sequence([self.emb(s) for s in seqs], enforce_sorted=False)
        return self.out(self.gru(packed)[1][-1])


def collate(batch):
    return [s.tokens for s in batch], torch.stack([s.stars for s in batch])


def throughput(meter, rank):
    last = 0
    while True:
        time.sleep(4)
        if rank == 0:
            print(f"{(meter['n'] - last) / 4:.1f} reviews/s, loss {meter['loss']:.3f}", flush=True)
        last = meter["n"]


def fit(rank, world, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    born = time.monotonic()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    ds = Reviews()
    loader = DataLoader(ds, batch_size=16, sampler=ByLength(ds.lengths, rank, world), collate_fn=collate)
    model = nn.parallel.DistributedDataParallel(Rater())
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    meter = {"n": 0, "loss": 0.0}
    threading.Thread(target=throughput, args=(meter, rank), daemon=True).start()
    said = False
    for _ in range(1000):
        for seqs, stars in loader:
            loss = nn.functional.cross_entropy(model(seqs), stars)
            opt.zero_grad()
            loss.backward()
            opt.step()
            meter["n"] += len(stars)
            meter["loss"] = loss.item()
            if rank == 0 and not said and time.monotonic() - born > 8:
                said = True
                print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    mp.spawn(fit, (3, port), nprocs=3, daemon=True)
