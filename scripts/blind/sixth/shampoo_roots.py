"""FIELD
source: kozistr/pytorch_optimizer#100, a Shampoo optimizer that is very slow for wide layers, rebuilt with inverse roots in numpy that are refreshed rarely
mechanism: the optimizer keeps one statistics matrix per block; every so often it takes their eigendecomposition for a grid of dampings inside step(): minutes of native linear algebra on one thread, then training goes on
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: computing_on_host,cpu_training
blame: none
twin: none
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
import time

import numpy as np
import torch
from torch import nn


class Shampoo(torch.optim.Optimizer):
    """One-sided: only the input dimension is preconditioned, in float64 on the host."""

    def __init__(self, params, lr=1e-3, refresh_after=20.0, dampings=90):
        super().__init__(params, {"lr": lr})
        self.due = time.monotonic() + refresh_after
        self.refresh_after, self.dampings = refresh_after, np.logspace(-6, -1, dampings)

    def _root(self, statistics, damping):
        values, vectors = np.linalg.eigh(statistics.numpy() + damping * np.eye(len(statistics)))
        root = torch.from_numpy((vectors / np.maximum(values, damping) ** 0.25) @ vectors.T).float()
        return float(values[-1] / max(values[0], damping)), root

    @torch.no_grad()
    def step(self, closure=None):
        if time.monotonic() > self.due:
            print("refreshing roots", flush=True)
            print("ONSET", flush=True)
            for state in list(self.state.values()):
                if "statistics" in state:
                    for damping in self.dampings:  # the smallest that is well conditioned
                        condition, root = self._root(state["statistics"], damping)
                        if condition < 1e4 or state["root"] is None:
                            state["root"] = root
            self.due = time.monotonic() + self.refresh_after
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if p.ndim == 2 and p.shape[1] > 64:
                    if "statistics" not in state:
                        state["statistics"] = torch.eye(p.shape[1], dtype=torch.float64) * 1e-3
                        state["root"], state["n"] = None, 0
                    state["n"] += 1
                    if state["n"] % 50 == 0:
                        g = p.grad.double()
                        state["statistics"].mul_(0.95).addmm_(g.T, g)
                    grad = p.grad if state["root"] is None else p.grad @ state["root"]
                else:
                    grad = p.grad
                p.add_(grad, alpha=-group["lr"])


def batches(n):
    gen = torch.Generator().manual_seed(0)
    w = torch.randn(2000, 8, generator=gen)
    while True:
        x = (torch.rand(n, 2000, generator=gen) < 0.02).float()
        yield x, (x @ w).argmax(1)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(2000, 48), nn.ReLU(), nn.Linear(48, 1600), nn.ReLU(), nn.Linear(1600, 8))
    opt = Shampoo(net.parameters(), lr=0.05)
    done = 0
    for x, y in batches(64):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
        done += 1
        if done % 200 == 0:
            print("step", done, "loss", round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    main()
