"""FIELD
source: https://github.com/rtqichen/torchdiffeq/issues/26 ("odenet_mnist seems stuck") and https://github.com/rtqichen/torchdiffeq/issues/153
mechanism: one optimizer step of a neural ODE takes about ten seconds, because the solver calls the network hundreds of times on the CPU; a line is printed each eighth step only
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import time
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)

class Field(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus(), nn.Linear(hidden, dim))
        self.calls = 0

    def forward(self, t, z):
        self.calls += 1
        return self.net(torch.cat([z, z.new_full((z.shape[0], 1), t)], 1))

def rk4(field, z, t0, h, n):
    for k in range(n):
        t = t0 + k * h
        k1 = field(t, z)
        k2 = field(t + h / 2, z + h / 2 * k1)
        k3 = field(t + h / 2, z + h / 2 * k2)
        k4 = field(t + h, z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return z

def solve(field, z, steps=160, chunk=16):
    h = 1.0 / steps
    for c in range(steps // chunk):
        z = checkpoint(rk4, field, z, c * chunk * h, h, chunk, use_reentrant=False)
    return z

def two_moons(n):
    angle = torch.rand(n) * 3.14159
    side = (torch.rand(n) < 0.5).float()
    x = torch.stack([angle.cos() * (1 - 2 * side) + side, angle.sin() * (1 - 2 * side) + 0.5 * side], 1)
    return torch.cat([x + 0.05 * torch.randn(n, 2), torch.zeros(n, 14)], 1)

def main():
    field = Field(16, 256)
    opt = torch.optim.Adam(field.parameters(), lr=2e-3)
    begun, step = time.time(), 0
    while time.time() - begun < 780:
        z = solve(field, two_moons(256))
        loss = 0.5 * z.pow(2).sum(1).mean() + (z.var(0) - 1).pow(2).sum()
        opt.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(field.parameters(), 5.0)
        opt.step()
        if step == 0:
            print('ONSET', flush=True)
        if step % 8 == 0:
            print(f'{time.time() - begun:.0f} s step {step} loss {loss.item():.3f} nfe {field.calls}', flush=True)
        step += 1

if __name__ == '__main__':
    main()
