"""A decoder on the GPU is fed with samples scattered over a file that is not in the page cache: the workers wait for the disk."""

import mmap
import os
import random

import accelerator
import decoder
import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

SLOWER = {"loud": 10, "quiet": 3, "masked": 1.6}  # reading a batch takes so many steps
SIZE, BLOCK = 256 << 20, 4 << 10
WORKERS, BATCH, LENGTH = 2, 8, 512


class Samples(Dataset):
    def __init__(self, path, calm, reads):
        self.path, self.calm, self.reads = path, calm, reads

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            for _ in range(self.reads if index >= self.calm else 1):
                raw = cold_read(file)
        finally:
            os.close(file)
        numbers = torch.frombuffer(bytearray(raw), dtype=torch.int16)[: LENGTH + 1]
        return numbers.long().remainder(decoder.VOCABULARY)


def cold_read(file):
    at = random.randrange(SIZE // BLOCK) * BLOCK
    os.preadv(file, [block], at)
    return block


args = stage.arguments(__doc__)
block = mmap.mmap(-1, BLOCK, mmap.MAP_PRIVATE)  # aligned, as O_DIRECT wants it; each worker has its own
block[:] = bytes(BLOCK)
path = surroundings.scratch_folder() / "samples.bin"
with path.open("w+b") as shard:
    for _ in range(SIZE >> 20):
        shard.write(os.urandom(1 << 20))
    shard.flush()
    os.fsync(shard.fileno())
direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
one_read = surroundings.typical_seconds(lambda: [cold_read(direct) for _ in range(20)]) / 20
card = accelerator.device()
surroundings.innocent_activity(args.strength)
model, optimizer = decoder.build(card, 1024, 8, LENGTH)
random_batch = decoder.random_tokens(card, BATCH, LENGTH)
one_step = accelerator.typical_seconds(lambda: decoder.train_step(model, optimizer, random_batch))
reads = max(1, round(one_step * SLOWER[args.strength] * WORKERS / BATCH / one_read))
samples = Samples(path, args.steps * BATCH, reads)
for step, tokens in enumerate(DataLoader(samples, batch_size=BATCH, num_workers=WORKERS, pin_memory=True)):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, tokens.to(card, non_blocking=True))
    if step % 20 == 0:
        print(step, loss.item(), reads, flush=True)
