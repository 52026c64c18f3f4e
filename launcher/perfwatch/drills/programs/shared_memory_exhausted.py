"""/dev/shm is nearly full: the batch cache that should live there spills to disk, on every step."""

import os
from pathlib import Path

import stage
import surroundings
import torch

SIZE = 48 << 20
SPILLS = {"loud": 40, "quiet": 20, "masked": 12}


class BatchCache:
    def __init__(self, spill):
        self.spill = spill

    def put(self, name, batch):
        try:
            target = Path("/dev/shm") / name
            torch.save(batch, target)
        except (OSError, RuntimeError):
            target.unlink(missing_ok=True)
            target = self.spill / name
            with open(target, "wb") as file:
                torch.save(batch, file)
                os.fsync(file.fileno())
        return target


def leak(file):
    with open(file, "wb") as left:
        os.posix_fallocate(left.fileno(), 0, os.statvfs("/dev/shm").f_bavail * 4096 - (64 << 10))


def main():
    args = stage.arguments(__doc__)
    surroundings.small_shared_memory(SIZE)
    surroundings.innocent_activity(args.strength)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    spill = surroundings.scratch_folder()
    cache = BatchCache(spill)
    for step in range(100_000_000):
        if step == args.steps:
            leak(Path("/dev/shm/left-by-an-earlier-run"))
            stage.onset()
        for part in range(SPILLS[args.strength] if step >= args.steps else 1):
            path = cache.put(f"batch-{part}", torch.randn(128, 1024))
            batch = torch.load(path)
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()


main()
