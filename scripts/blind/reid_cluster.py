"""FIELD
source: CASIA-LMC-Lab/ISP-reID#19 (clustering per identity every two epochs takes 300 s on the CPU; "I think it is ok")
mechanism: between epochs each rank clusters the pixel features of its identities with k-means in numpy; rank 1 has fewer and waits in the gather
needs: cpu
ranks: 2
onset: printed
state: busy
cause: computing_on_host, waiting_on_work
blame: none
twin: none
"""
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)


def kmeans(points, k, rng, iterations=40):
    centres = points[rng.choice(len(points), k, replace=False)]
    for _ in range(iterations):
        labels = np.empty(len(points), dtype=np.int64)
        for lo in range(0, len(points), 4096):
            chunk = points[lo:lo + 4096]
            labels[lo:lo + 4096] = ((chunk[:, None, :] - centres[None]) ** 2).sum(-1).argmin(1)
        for c in range(k):
            mine = points[labels == c]
            if len(mine):
                centres[c] = mine.mean(0)
    return labels


@torch.no_grad()
def pseudo_labels(model, identities, max_seconds):
    rng, started, parts = np.random.default_rng(dist.get_rank()), time.time(), {}
    for pid in identities:
        features = model(torch.randn(30_000, 32)).numpy()
        best = min((kmeans(features, 7, rng) for _ in range(3)), key=lambda lab: np.bincount(lab).std())
        parts[pid] = np.bincount(best, minlength=7).tolist()
        if time.time() - started > max_seconds:
            break
    return parts


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    backbone = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 24))
    model = DistributedDataParallel(backbone)
    opt = torch.optim.Adam(model.parameters(), lr=3.5e-4)
    for epoch in range(4):
        if epoch == 2:
            if rank == 0:
                print("ONSET", flush=True)
            mine = range(rank, 751, world)
            parts = pseudo_labels(backbone, mine, max_seconds=400 if rank == 0 else 310)
            gathered = [None] * world
            dist.all_gather_object(gathered, parts)
            if rank == 0:
                print("clustered", sum(map(len, gathered)), "identities", flush=True)
        for _ in range(400):
            x = torch.randn(64, 32)
            loss = nn.functional.cross_entropy(model(x), torch.randint(0, 24, (64,)))
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
