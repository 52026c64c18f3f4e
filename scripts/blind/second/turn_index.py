"""FIELD
source: allenai/allennlp#4298 (only one process initialises at a time, the others wait for their turn)
mechanism: to save memory the ranks build their nearest-neighbour graph one after the other, with a barrier after each turn; each turn takes minutes and all end
needs: cpu
ranks: 3
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import datetime
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)


def knn(points, k=10, block=16):
    out = np.zeros((len(points), k), dtype=np.int64)
    norms, begun = (points ** 2).sum(1), time.time()
    for at in range(0, len(points), block):
        if at % 3200 == 0:
            print(f"rank {dist.get_rank()}: {at}/{len(points)}", flush=True)
        if time.time() - begun > 150:
            break
        part = points[at:at + block]
        gaps = norms[None] + (part ** 2).sum(1)[:, None] - 2 * part @ points.T
        out[at:at + block] = np.argsort(gaps, axis=1)[:, 1:k + 1]
    return out


def average(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        p.grad.copy_(part.view_as(p) / dist.get_world_size())


def stage(model, opt, points, neighbours, steps):
    rank = dist.get_rank()
    for step in range(steps):
        rows = torch.randint(0, len(points), (256,))
        x = torch.from_numpy(points[rows])
        other = x + 0.1 * torch.randn_like(x)
        if neighbours is not None:
            other = torch.from_numpy(points[neighbours[rows, step % neighbours.shape[1]]])
        scores = nn.functional.normalize(model(x)) @ nn.functional.normalize(model(other)).T
        loss = nn.functional.cross_entropy(scores * 10, torch.arange(256))
        opt.zero_grad()
        loss.backward()
        average(model)
        opt.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=14))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 64))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    points = np.random.default_rng(rank).standard_normal((48000, 48)).astype(np.float32)
    stage(model, opt, points, None, 400)
    if rank == 0:
        print("ONSET", flush=True)
    neighbours = None
    for turn in range(world):
        if turn == rank:
            started = time.time()
            neighbours = knn(points)
            print(f"rank {rank}: graph in {time.time() - started:.0f} s", flush=True)
        dist.barrier()
    stage(model, opt, points, neighbours, 600)


if __name__ == "__main__":
    main()
