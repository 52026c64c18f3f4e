"""The memory-mapped data set is larger than the memory limit leaves: pages are read, dropped and read again."""

import mmap
import os
import random
import tempfile

import stage
import surroundings
import torch

SIZE = 256 << 20
PAGE = 4096
LEFT = 96 << 20  # what the training itself allocates from then on is a third of it
LOST = {"loud": 4, "quiet": 1, "masked": 0.45}  # page faults take so many times the rest of the step


def gather(features, pages):
    return torch.tensor([features[random.randrange(SIZE // PAGE) * PAGE] for _ in range(pages)], dtype=torch.float32)


args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
file = tempfile.TemporaryFile(dir="/var/tmp")
for _ in range(SIZE >> 20):
    file.write(os.urandom(1 << 20))
file.flush()
os.fsync(file.fileno())
features = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
features.madvise(mmap.MADV_RANDOM)
wide = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 64))
optimizer = torch.optim.SGD(wide.parameters(), lr=1e-6)
touched = 64


def train_step(rows):
    optimizer.zero_grad()
    wide(rows.expand(1024, 64)).square().mean().backward()
    optimizer.step()


one_step = surroundings.typical_seconds(lambda: train_step(torch.rand(64)))
for step in range(100_000_000):
    if step == args.steps:
        features.madvise(mmap.MADV_DONTNEED)  # pages stay charged to whoever read them first: all must go
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        surroundings.limit_memory(LEFT)
        gather(features, 3 * LEFT // 2 // PAGE)
        one_touch = surroundings.typical_seconds(lambda: gather(features, 100)) / 100
        touched = max(64, int(LOST[args.strength] * one_step / one_touch))
        stage.onset()
    train_step(gather(features, touched)[:64])
