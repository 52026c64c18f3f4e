"""FIELD
source: own
mechanism: a neural ODE is trained with an adaptive solver; after the warm-up the tolerance is tightened as planned and each step needs hundreds of evaluations and some seconds, all of it computation of the model
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Drift(nn.Module):
    def __init__(self, dim=6, hidden=192):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, dim))
        self.calls = 0

    def forward(self, t, y):
        self.calls += 1
        return self.net(torch.cat([y, t.expand(len(y), 1)], 1))


def heun_euler(f, y, end, tol):
    t, h = torch.zeros(1), torch.tensor([0.05])
    while t < end:
        h = torch.minimum(h, end - t)
        k1 = f(t, y)
        k2 = f(t + h, y + h * k1)
        error = (h * (k2 - k1) / 2).detach().norm(dim=1).mean()
        if error <= tol:
            t, y = t + h, y + h * (k1 + k2) / 2
        h = h * float((0.9 * (tol / error.clamp(min=1e-12)) ** 0.5).clamp(0.3, 3.0))
    return y


def spirals(n):
    start = torch.randn(n, 6)
    angle = 4.0 * start.norm(dim=1, keepdim=True)
    a, b = start[:, :3], start[:, 3:]
    return start, torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], 1)


def main():
    drift = Drift()
    opt = torch.optim.Adam(drift.parameters(), lr=3e-3)
    started, step, tol = time.time(), 0, 3e-2
    while time.time() - started < 600:
        if tol > 1e-2 and time.time() - started > 10:
            tol = 1e-4
            print("ONSET", flush=True)
        drift.calls = 0
        x, goal = spirals(512)
        loss = nn.functional.mse_loss(heun_euler(drift, x, torch.ones(1), tol), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if tol < 1e-2 or step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} evaluations {drift.calls}", flush=True)


if __name__ == "__main__":
    main()
