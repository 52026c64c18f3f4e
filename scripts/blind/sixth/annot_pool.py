"""FIELD
source: mapillary/OpenSfM#190, huggingface/datasets#5976 (the OOM killer takes a worker of multiprocessing.Pool, map() never returns)
mechanism: hard labels are refreshed in a Pool every few seconds; one outline is far too large and its worker is killed
    as the kernel would kill it; the pool starts a new worker, but the result of the lost task never comes
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker
blame: worker
twin: none
"""

import math
import multiprocessing
import os
import random
import signal
import time

import torch
import torch.nn.functional as F

HUGE = 5_000


def outline(seed, corners):
    rng = random.Random(seed)
    return [(math.cos(k) * rng.uniform(0.4, 1.0), math.sin(k) * rng.uniform(0.4, 1.0)) for k in range(corners)]


def rasterize(job):
    seed, corners = job
    if corners > HUGE:
        os.kill(os.getpid(), signal.SIGKILL)  # stands in for the OOM killer
    points = outline(seed, corners)
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(points, points[1:] + points[:1], strict=True)) / 2
    mask = [[1.0 if math.hypot(x - 16, y - 16) < 4 + abs(area) % 10 else 0.0 for x in range(32)] for y in range(32)]
    return mask


def refresh(pool, round_number, unusual):
    jobs = [(round_number * 100 + k, 40 + k) for k in range(48)]
    if unusual:
        jobs[29] = (7, 9_000_000)
        print(f"refresh {round_number}: includes the coast lines", flush=True)
        print("ONSET", flush=True)
    return torch.tensor(pool.map(rasterize, jobs, chunksize=4)).unsqueeze(1)


def main():
    torch.set_num_threads(1)
    pool = multiprocessing.get_context("fork").Pool(2, initializer=signal.alarm, initargs=(300,))
    signal.alarm(300)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 1, 1),
    )
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    began, round_number = time.monotonic(), 0
    while True:
        masks = refresh(pool, round_number, time.monotonic() - began > 18)
        total = 0.0
        for step in range(120):
            pick = torch.randint(len(masks), (12,))
            image = masks[pick] * 0.6 + 0.4 * torch.rand(12, 3, 32, 32)
            loss = F.binary_cross_entropy_with_logits(net(image), masks[pick])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"round {round_number}: loss {total / (step + 1):.4f}", flush=True)
        round_number += 1


if __name__ == "__main__":
    main()
