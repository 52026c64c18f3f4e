"""One very long checkpoint: hundreds of shards, each flushed to the disk. Steps will go on when it is done."""

import os

import stage
import surroundings
import torch

SHARDS = 20_000


def save_sharded(tensors, folder):
    for number in range(SHARDS):
        with open(os.path.join(folder, f"shard-{number % 8}.pt"), "wb") as shard:
            torch.save(tensors[number % len(tensors)], shard)
            shard.flush()
            os.fsync(shard.fileno())


args = stage.arguments(__doc__)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512))
optimizer = torch.optim.Adam(net.parameters())
batch = torch.randn(128, 512)
step = 0
folder = surroundings.scratch_folder()
while True:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(batch), batch).backward()
    optimizer.step()
    step += 1
    if step == args.steps:
        stage.onset()
        save_sharded([torch.randn(4 << 20) for _ in range(4)], folder)
