"""FIELD
source: own (physics-informed network: Adam first, then L-BFGS with hundreds of closure calls inside one step)
mechanism: torch.optim.LBFGS evaluates the closure up to 400 times inside each call of step(), so that one step takes tens of seconds
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import math
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [2, 64, 64, 64, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, xt):
        for layer in self.layers[:-1]:
            xt = torch.tanh(layer(xt))
        return self.layers[-1](xt)


def residual(model, xt):
    xt = xt.requires_grad_(True)
    u = model(xt)
    du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
    u_x, u_t = du[:, :1], du[:, 1:]
    u_xx = torch.autograd.grad(u_x.sum(), xt, create_graph=True)[0][:, :1]
    return u_t + u * u_x - 0.01 / math.pi * u_xx


def objective(model, inner, edge, edge_values):
    return residual(model, inner).pow(2).mean() + (model(edge) - edge_values).pow(2).mean()


def main():
    model = Field()
    inner = torch.rand(4000, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    edge = torch.cat([torch.rand(400, 1) * 2 - 1, torch.zeros(400, 1)], 1)
    values = -torch.sin(math.pi * edge[:, :1])
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    began, step = time.time(), 0
    while time.time() - began < 9:
        loss = objective(model, inner.clone(), edge, values)
        adam.zero_grad()
        loss.backward()
        adam.step()
        step += 1
    print(f"adam {step} steps, loss {loss.item():.5f}", flush=True)
    print("ONSET", flush=True)
    round_ = 0
    while time.time() - began < 430:
        lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=400, max_eval=500, history_size=50,
                                  tolerance_grad=1e-12, tolerance_change=1e-14)

        def closure():
            lbfgs.zero_grad()
            loss = objective(model, inner.clone(), edge, values)
            loss.backward()
            return loss

        first = lbfgs.step(closure)
        round_ += 1
        inner = torch.rand(4000, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
        print(f"lbfgs {round_} loss {first.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
