"""A router in the model balances its experts until the loads differ by less than a bound, which at last they never do."""

import stage
import torch
from torch import nn


class BalancedRouter(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.bound = 0.5

    def forward(self, x):
        scores = self.gate(x)
        while True:
            shares = torch.softmax(scores, -1)
            load = shares.mean(0)
            if (load.max() - load.min()).item() <= self.bound:
                return shares
            scores = scores - 0.5 * torch.log(load).detach()


class Mixture(nn.Module):
    def __init__(self, width=64, experts=8):
        super().__init__()
        self.inlet, self.router = nn.Linear(width, width), BalancedRouter(width, experts)
        self.experts = nn.Linear(width, experts)

    def forward(self, x):
        hidden = torch.relu(self.inlet(x))
        return (self.router(hidden) * self.experts(hidden)).sum(-1)


opt = stage.arguments(__doc__)
mixture = Mixture()
adam = torch.optim.Adam(mixture.parameters(), 1e-4)
for step in range(10**8):
    if step == opt.steps:
        mixture.router.bound = -1.0
        stage.onset()
    loss = (mixture(torch.randn(256, 64)) - 1.0).pow(2).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
