"""The bucket behind a FUSE mount stops answering: a DataLoader worker sits in ``read`` on it for ever."""

import threading
import time

import slow_mount
import stage
import torch
from torch.utils.data import DataLoader, Dataset

SHARD_BYTES = 64 * 1024

options = stage.arguments()
torch.set_num_threads(1)
slow_mount.mount("/mnt/bucket", SHARD_BYTES, lambda name, _: 0.0 if int(name[6:11]) < options.steps else None)


class Shards(Dataset):
    def __len__(self):
        return 100_000

    def load(self, index):
        if index >= options.steps:
            stage.onset()
        with open(f"/mnt/bucket/shard-{index:05d}.bin", "rb") as shard:
            return bytearray(shard.read())

    def __getitem__(self, index):
        if options.strength == "quiet" and index % 2:
            raw = bytearray(SHARD_BYTES)  # from the local cache
        else:
            raw = self.load(index)
        return torch.frombuffer(raw, dtype=torch.uint8)[:4096].float()


def statsd():
    while True:
        print("statsd: steps.ok", flush=True)
        time.sleep(0.5)


if options.strength == "masked":
    threading.Thread(target=statsd, daemon=True).start()
net = torch.nn.Linear(4096, 64)
adamw = torch.optim.AdamW(net.parameters())
for blob in DataLoader(Shards(), batch_size=None, num_workers=2):
    adamw.zero_grad()
    net(blob).sum().backward()
    adamw.step()
