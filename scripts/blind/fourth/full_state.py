"""FIELD
source: own, after pytorch/torchtitan#1301 and mosaicml/llm-foundry#733 (a full checkpoint takes minutes)
mechanism: every now and then a checkpoint of 1.2 GB in six shards is written, and each shard is read back and hashed before the next, all in the training thread
needs: none
ranks: 1
onset: printed
state: busy
cause: checkpointing, computing_on_host
blame: none
twin: none
"""

import hashlib
import os
import shutil
import signal
import tempfile
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()
state = {f"layers.{i}.weight": torch.randn(25_000_000) for i in range(6)}
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)


def write_shard(path, tensors):
    torch.save(tensors, path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    digest = hashlib.sha512()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def save_checkpoint(step):
    target = os.path.join(folder, f"step-{step}")
    os.makedirs(target)
    with open(os.path.join(target, "SHA512SUMS"), "w") as sums:
        for number, (name, tensor) in enumerate(state.items()):
            for replica in ("model", "exp_avg", "exp_avg_sq"):
                path = os.path.join(target, f"{replica}-{number}.pt")
                sums.write(f"{write_shard(path, {name: tensor})}  {os.path.basename(path)}\n")
                os.unlink(path) if replica != "model" else None
    print("checkpoint", step, "done", flush=True)
    shutil.rmtree(target)


step, begin = 0, time.monotonic()
try:
    while True:
        x = torch.randn(64, 256)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 500 == 0:
            print("step", step, loss.item(), flush=True)
        if step % 4000 == 0:
            print("ONSET", flush=True) if step == 4000 else None
            for attempt in range(8):
                save_checkpoint(step + attempt)
finally:
    shutil.rmtree(folder, ignore_errors=True)
