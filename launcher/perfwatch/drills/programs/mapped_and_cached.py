"""A large memory-mapped data set read at random, all of it cached: minor faults, no major ones. Healthy."""

import mmap
import os
import random
import tempfile

import stage
import torch

BYTES = 128 << 20

options = stage.arguments(__doc__)
torch.set_num_threads(1)
with tempfile.TemporaryFile(dir="/var/tmp") as binary:
    for _ in range(BYTES >> 20):
        binary.write(os.urandom(1 << 20))
    binary.flush()
    table = mmap.mmap(binary.fileno(), BYTES, prot=mmap.PROT_READ)
    mixer = torch.nn.Sequential(torch.nn.Linear(128, 1024), torch.nn.SiLU(), torch.nn.Linear(1024, 128))
    lion = torch.optim.RMSprop(mixer.parameters())
    for iteration in range(100_000_000):
        if iteration == options.steps:
            stage.onset()
        table.madvise(mmap.MADV_DONTNEED)  # unmaps the pages, the cache keeps them
        row = torch.tensor([float(table[random.randrange(BYTES)]) for _ in range(128)])
        lion.zero_grad()
        mixer(row.expand(256, 128)).square().mean().backward()
        lion.step()
