"""FIELD
source: bayesflow-org/bayesflow#466, cog-model/forger#10 (rejection sampling that can never accept, in the feed of a trainer)
mechanism: four sites of a federation train with a custom batch sampler that draws until a batch has K different classes; at
    site 2 old records expire, fewer than K classes are left, and the sampler draws for ever while the others wait to merge
needs: none
ranks: 1 (it starts its own 4)
onset: printed
state: hung
cause: stalled_collective, endless_python
blame: rank 2
twin: none
"""
import ctypes
import multiprocessing
import os
import random
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

CLASSES, PER_BATCH = 8, 5


class Records(Dataset):
    def __init__(self, site):
        generator = torch.Generator().manual_seed(site)
        self.labels = torch.randint(0, CLASSES, (1500,), generator=generator)
        self.waves = torch.randn(1500, 2, 80, generator=generator) + torch.sin(
            torch.arange(80) * (self.labels[:, None, None] + 1) * 0.1
        )
        self.alive = list(range(1500))

    def expire(self, keep):
        self.alive = [i for i in self.alive if int(self.labels[i]) in keep]

    def __len__(self):
        return len(self.alive)

    def __getitem__(self, index):
        return self.waves[index], self.labels[index]


class DiverseBatches(Sampler):
    """Batches with at least ``least`` classes, by rejection."""

    def __init__(self, records, size, least, count, rng):
        self.records, self.size, self.least, self.count, self.rng = records, size, least, count, rng

    def __len__(self):
        return self.count

    def draw(self):
        while True:
            batch = self.rng.choices(self.records.alive, k=self.size)
            if len({int(self.records.labels[i]) for i in batch}) >= self.least:
                return batch

    def __iter__(self):
        for _ in range(self.count):
            yield self.draw()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(2, 16, 9, 2), nn.GELU(), nn.Conv1d(16, 32, 9, 2), nn.GELU(), nn.Flatten())
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, waves):
        return self.head(self.features(waves))


def merge(model, weight):
    total = torch.tensor([float(weight)])
    dist.all_reduce(total)
    for p in model.parameters():
        p.data.mul_(weight / total.item())
        dist.all_reduce(p.data)


def site(rank, world, store):
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(11)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    records, model = Records(rank), Classifier()
    model(records.waves[:2])
    loader = DataLoader(records, batch_sampler=DiverseBatches(records, 24, PER_BATCH, 12, random.Random(rank)))
    born = time.monotonic()
    for turn in range(10_000):
        if turn and rank == 2 and time.monotonic() - born > 17 and len(records) > 1000:
            records.expire(keep={0, 3, 4, 6})
            print("ONSET", flush=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.8)
        for waves, labels in loader:
            loss = nn.functional.cross_entropy(model(waves), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)  # the sites leave room for the clinic's own software
        merge(model, len(records))
        if rank == 0 and turn % 2 == 0:
            print(f"round {turn}: {loss.item():.3f}", flush=True)


def member(*where):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    site(*where)


def main():
    signal.alarm(300)
    store = os.path.join(tempfile.mkdtemp(prefix="federation_"), "store")
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=member, args=(r, 4, store), daemon=True) for r in range(1, 4)]
    for process in others:
        process.start()
    site(0, 4, store)


if __name__ == "__main__":
    main()
