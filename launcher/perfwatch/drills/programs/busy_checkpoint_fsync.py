"""Look-alike of blocked storage: a sharded checkpoint, each shard written and fsynced to a disk that takes its time."""

import os
import tempfile
import time

import stage
import torch


def save_shard(path, tensors):
    with open(path, "wb") as shard:
        for tensor in tensors:
            shard.write(tensor.detach().numpy().tobytes())
            shard.flush()
            os.fsync(shard.fileno())
            time.sleep(0.4)  # the disk of a busy neighbour


def save_checkpoint(model, folder):
    layers = list(model.parameters())
    for number in range(12):
        save_shard(f"{folder}/shard-{number:05d}.bin", layers)


def train(steps, folder):
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(5)])
    adam = torch.optim.Adam(model.parameters())
    for n in range(1, 10**6):
        adam.zero_grad()
        model(torch.randn(128, 256)).square().mean().backward()
        adam.step()
        if n % steps == 0:
            stage.onset()
            save_checkpoint(model, folder)


torch.set_num_threads(1)
with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
    train(stage.arguments().steps, scratch)
