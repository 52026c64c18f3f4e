"""Workers read the disk all the time and wait for it, but far enough ahead of the model. Healthy."""

import os
import random

import stage
import surroundings
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAGE = 4096
PAGES = 8192


class Records(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 10_000_000

    def __getitem__(self, _):
        fd = os.open(self.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        record = b"".join(os.pread(fd, PAGE, PAGE * random.randrange(PAGES)) for _ in range(8))
        os.close(fd)
        return torch.frombuffer(bytearray(record), dtype=torch.uint8)[:512].float() / 255


if __name__ == "__main__":
    arguments = stage.arguments(__doc__)
    torch.set_num_threads(1)
    with open(surroundings.scratch_folder() / "samples.bin", "w+b") as file:
        file.write(os.urandom(PAGE * PAGES))
        file.flush()
        os.fsync(file.fileno())
        body = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
        opt = torch.optim.SGD(body.parameters(), lr=1e-3)
        for i, batch in enumerate(DataLoader(Records(file.name), batch_size=8, num_workers=1, prefetch_factor=8)):
            if i == arguments.steps:
                stage.onset()
            loss = body(batch.repeat(16, 1)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
