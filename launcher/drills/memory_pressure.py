"""The memory-mapped data set is larger than the memory limit leaves: pages are read, dropped and read again."""

import mmap
import os
import random
import tempfile
import time

import stage
import surroundings
import torch

SIZE = 256 << 20
PAGE = 4096
LOST = {"loud": 0.120, "quiet": 0.030, "masked": 0.015}  # seconds of page faults in one step


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
for step in range(100_000_000):
    if step == args.steps:
        features.madvise(mmap.MADV_DONTNEED)  # pages stay charged to whoever read them first: all must go
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        surroundings.limit_memory(64 << 20)
        gather(features, (96 << 20) // PAGE)
        began = time.monotonic()
        gather(features, 500)
        touched = max(64, int(LOST[args.strength] / (time.monotonic() - began) * 500))
        stage.onset()
    rows = gather(features, touched)[:64].expand(1024, 64)
    optimizer.zero_grad()
    wide(rows).square().mean().backward()
    optimizer.step()
