"""FIELD
source: own: DDP with a huge effective batch; no_sync() over hundreds of micro-batches, a log line per optimizer step
mechanism: the warm-up has 8 micro-batches per step; then the accumulation grows, so that more than a minute lies
    between two optimizer steps and two all-reduces, with forward and backward all the time
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: healthy
cause: any
blame: none
twin: none
"""
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class PatchClassifier(nn.Module):
    def __init__(self, width=160, depth=4, classes=100):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(torch.zeros(1, 64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        tokens = self.patch(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


class AccumulationSchedule:
    """Small batches while the loss falls fast; the large batch afterwards."""

    def __init__(self, warmup_steps, small, large):
        self.warmup_steps, self.small, self.large = warmup_steps, small, large

    def __call__(self, step):
        return self.small if step < self.warmup_steps else self.large


def micro_batches(rank, size=4):
    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randn(size, 3, 64, 64, generator=generator), torch.randint(100, (size,), generator=generator)


def train(rank, world, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = DDP(PatchClassifier())
    opt = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)
    schedule, batches = AccumulationSchedule(warmup_steps=5, small=10, large=1100), micro_batches(rank)
    for step in range(1000):
        began, total = time.time(), 0.0
        count = schedule(step)
        if step == schedule.warmup_steps and rank == 0:
            print("ONSET", flush=True)
        for micro in range(count):
            images, labels = next(batches)
            last = micro == count - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1) / count
                loss.backward()
            total += loss.item()
            time.sleep(0.03)  # leave the node's other tenant some room
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        scheduler.step()
        opt.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {step} loss {total:.4f} micro {count} {time.time() - began:.1f} s", flush=True)


def launch(world=2):
    signal.alarm(300)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = []
    for rank in range(world):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        ranks.append(subprocess.Popen([sys.executable, __file__], env=env))
    for p in ranks:
        p.wait()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])
    else:
        launch()
