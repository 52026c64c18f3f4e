"""Samples lie scattered in a file that is not cached: the workers wait for the disk, the model for the workers."""

import os
import random
import time

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, IterableDataset

SLOWER = {
    "loud": 5,
    "quiet": 2,
    "masked": 1.45,
}  # reading a batch takes so many steps, however fast the disk is just now
BATCH = 8
SIZE = 64 << 20
BLOCK = 128 << 10


class Shards(IterableDataset):
    def __init__(self, path, calm, steps, pace):
        self.path, self.calm, self.steps, self.pace = path, calm, steps, pace

    def __iter__(self):
        file = os.open(self.path, os.O_RDONLY)
        for number in range(10_000_000):
            sample = self.read_sample(file, self.steps * self.pace.seconds if number >= self.calm else 0.0)
            yield torch.frombuffer(bytearray(sample), dtype=torch.uint8)[:256].float()

    def read_sample(self, file, seconds):
        parts, until = [cold_read(file)], time.monotonic() + seconds
        while time.monotonic() < until:
            parts.append(cold_read(file))
        return b"".join(parts)


def cold_read(file):
    at = random.randrange(SIZE // BLOCK) * BLOCK
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # as if the file were larger than the memory
    return os.pread(file, BLOCK, at)


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    surroundings.innocent_activity(args.strength)
    torch.set_num_threads(1)
    with open(surroundings.scratch_folder() / "samples.bin", "w+b") as shard:
        shard.write(os.urandom(SIZE))
        shard.flush()
        os.fsync(shard.fileno())
        os.posix_fadvise(shard.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1))
        optim = torch.optim.Adam(model.parameters())

        def train_step(samples):
            optim.zero_grad()
            model(samples.repeat(64, 1)).pow(2).mean().backward()
            optim.step()

        pace = surroundings.Pace()
        shards = Shards(shard.name, args.steps * BATCH, SLOWER[args.strength] / BATCH, pace)
        data = DataLoader(shards, batch_size=BATCH, num_workers=1)
        for step, batch in enumerate(data):
            if step == args.steps:
                stage.onset()
            with pace:
                train_step(batch)
