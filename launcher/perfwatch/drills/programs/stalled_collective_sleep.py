"""Some ranks; rank 1 goes to sleep between two steps and never reaches the gradient all_reduce that the others wait in."""

import itertools
import threading
import time

import ranks
import stage
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def refresh_curriculum(strength: str) -> None:
    if strength == "quiet":
        while not curriculum_ready():
            time.sleep(2.0)
    time.sleep(1_000_000)


def curriculum_ready() -> bool:
    return False


def report_alive(rank: int) -> None:
    while True:
        print(f"[rank {rank}] alive, {sum(i * i for i in range(20_000)) % 97} MiB in use", flush=True)
        time.sleep(0.5)


def main() -> None:
    options = stage.arguments()
    torch.set_num_threads(1)
    device = ranks.join(options)
    rank = dist.get_rank()
    net = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if options.strength == "masked":
        threading.Thread(target=report_alive, args=(rank,), daemon=True).start()
    for step in itertools.count():
        if step == options.steps and rank == 1:
            stage.onset(rank=rank)
            refresh_curriculum(options.strength)
        optimizer.zero_grad()
        loss = net(torch.randn(128, 256, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
