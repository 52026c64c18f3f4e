"""FIELD
source: own
mechanism: L-BFGS with a strong Wolfe line search over a full batch: one optimizer step calls the closure dozens of times and takes many seconds
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: vocabulary_first
"""
import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


class Pinn(torch.nn.Module):
    def __init__(self, width=64, depth=5):
        super().__init__()
        sizes = [2] + [width] * depth + [1]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


def residual(net, points):
    points = points.requires_grad_()
    u = net(points)
    (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
    return first[:, 1:] + u * first[:, :1] - 0.01 / 3.1416 * second[:, :1]


torch.manual_seed(0)
net = Pinn()
inside = torch.rand(2_500, 2) * 2 - 1
border = torch.rand(400, 2) * 2 - 1
optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=60, history_size=30, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = residual(net, inside.clone()).square().mean() + (net(border) + torch.sin(3.1416 * border[:, :1])).square().mean()
    loss.backward()
    return loss


for step in range(10**6):
    if step == 1:
        print("ONSET", flush=True)
    began = time.monotonic()
    loss = optimizer.step(closure)
    print(f"step {step} loss {float(loss):.5f} closures {calls} seconds {time.monotonic() - began:.1f}", flush=True)
