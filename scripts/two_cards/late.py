"""One symptom, four causes: a rank is 2.4 times as late as the other (torchrun --nproc-per-node 2 late.py KIND).

competitor   another program computes on the card of rank 1: as a failing card would look
jitter       the host holds up one rank or the other, by turns without a pattern
stages       a pipeline of two stages, and the second has more layers
shard        the files of rank 1 take longer to read and decode
"""

import os
import random
import subprocess
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CARD = torch.cuda.is_available()
WIDTH, ROWS, LAYERS = (4096, 8192, 8) if CARD else (64, 32, 2)
COMPETITOR = """
import os, sys, time, torch
torch.cuda.set_device(int(sys.argv[1]))
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""


def network(layers: int) -> nn.Module:
    """Wide layers."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)))


def held_up(seconds: float) -> None:
    """The host computes something else for so long."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        sum(index * index for index in range(2000))


def decoded(seconds: float, device: torch.device) -> Tensor:
    """A batch from this rank's shard, whose decoding takes so long."""
    ends = time.monotonic() + seconds
    records = np.arange(1 << 18, dtype=np.float32)
    while time.monotonic() < ends:
        records = np.sort(records[::-1])
    return torch.from_numpy(records[:ROWS].copy()).to(device)[:, None].expand(-1, WIDTH) * 1e-6


def main() -> None:
    """Train; ONSET after some seconds of it."""
    kind = sys.argv[1]
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if CARD else torch.device("cpu")
    if CARD:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if CARD else "gloo", timeout=timedelta(minutes=30))
    chance = random.Random(17)  # the same in both ranks
    heavy = rank == 1 and kind == "stages"
    model: nn.Module = network(round(LAYERS * 2.4) if heavy else LAYERS).to(device)
    if kind != "stages":
        model = DistributedDataParallel(model, device_ids=[local] if CARD else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = torch.randn(ROWS, WIDTH, device=device)
    if kind == "competitor" and rank == 0 and CARD:
        subprocess.Popen([sys.executable, "-c", COMPETITOR, "1"], start_new_session=True)
    began, told, step = time.monotonic(), False, 0
    while time.monotonic() - began < 300:
        usual = 0.03
        if kind == "jitter" and chance.randrange(2) == rank:
            held_up(1.4 * usual)
        given = decoded(usual * (2.4 if rank == 1 else 1.0), device) if kind == "shard" else x
        with torch.autocast(device.type, torch.bfloat16, enabled=CARD):
            if kind == "stages":
                staged(model, given, rank)
            else:
                model(given).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0 and step % 20 == 0:
            print(f"step {step} after {time.monotonic() - began:.1f} s", flush=True)
        if rank == 0 and not told and time.monotonic() - began > 8:
            told = True
            os.write(1, b"\nONSET\n")


def staged(model: nn.Module, x: Tensor, rank: int) -> None:
    """Four micro-batches forward through both stages, then back."""
    parts = x.chunk(4)
    kept = []
    for part in parts:
        if rank == 0:
            out = model(part)
            dist.send(out.detach().float().contiguous(), 1)
            kept.append(out)
        else:
            came = torch.empty(part.shape, device=part.device)
            dist.recv(came, 0)
            came.requires_grad_()
            model(came).float().square().mean().backward()
            kept.append(came)
    for one in kept:
        if rank == 0:
            gradient = torch.empty(one.shape, device=one.device)
            dist.recv(gradient, 1)
            one.backward(gradient.to(one.dtype))
        else:
            assert one.grad is not None
            dist.send(one.grad.contiguous(), 0)


if __name__ == "__main__":
    main()
