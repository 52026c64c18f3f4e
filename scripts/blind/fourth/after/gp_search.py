"""FIELD
source: own (Bayesian search with a Gaussian process in numpy between two trials)
mechanism: after a short trial the next point is searched: a Gaussian process over all trials is fitted for a grid of kernels by Cholesky decompositions, which takes minutes
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host
blame: none
twin: none
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
import signal
import time

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)
rng = np.random.default_rng(0)


def trial(lr):
    net = torch.nn.Linear(64, 64)
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(1500):
        x = torch.randn(64, 64)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def suggest(seconds):
    points, values = rng.random((1800, 4)), rng.random(1800)
    best, end = (np.inf, 0.1), time.monotonic() + seconds
    while time.monotonic() < end:
        scale = rng.random() + 0.1
        distance = ((points[:, None] - points[None]) ** 2).sum(-1)
        kernel = np.exp(-distance / scale) + 0.1 * np.eye(len(points))
        factor = np.linalg.cholesky(kernel)
        fit = np.linalg.solve(factor, values)
        best = min(best, (float(fit @ fit), scale))
    return 0.01 * best[1]


lr = 0.01
for number in range(10**6):
    print("trial", number, trial(lr), flush=True)
    if number == 0:
        print("ONSET", flush=True)
    lr = suggest(140)
