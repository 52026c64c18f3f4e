"""/dev/shm is too small for the workers' batches: a worker fails every few steps, and all start again."""

import gc
import itertools
import os

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((64, 2048), float(index % 7))


def leak():
    room = os.statvfs("/dev/shm").f_bavail * 4096 - (10 << 20)
    if room > 0:
        with open("/dev/shm/old-run.cache", "ab") as cache:
            os.posix_fallocate(cache.fileno(), cache.tell(), room)


def batches(dataset):
    while True:
        try:
            yield from DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=4)
        except (
            RuntimeError,
            OSError,
        ) as problem:  # a worker found no room for its batch, or no semaphore could be made
            print("loader failed, restarting it:", str(problem).splitlines()[0][:100], flush=True)
        gc.collect()  # the failed loader goes with its workers, before new ones are forked
        leak()


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    surroundings.small_shared_memory(64 << 20)
    torch.set_num_threads(1)
    critic = torch.nn.Sequential(torch.nn.Linear(2048, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.Adam(critic.parameters())
    for step, volume in zip(itertools.count(), batches(Volumes())):
        if step == args.steps:
            while os.statvfs("/dev/shm").f_bavail > (1 << 20) // 4096:
                with open("/dev/shm/old-run.cache", "ab") as cache:
                    cache.write(bytes(1 << 20))
            stage.onset()
        optimizer.zero_grad()
        critic(volume).square().mean().backward()
        optimizer.step()
