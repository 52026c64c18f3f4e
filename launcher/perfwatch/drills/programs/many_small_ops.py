"""Hundreds of small operations in every forward pass, and no debugging switched on. Healthy."""

import stage
import torch


class Ladder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(512, 512)
        self.rungs = torch.nn.Parameter(torch.zeros(300, 8))

    def forward(self, x):
        bias = torch.ones(8)
        for rung in self.rungs:
            bias = bias + rung * 0.01
        return self.base(x).mean() * bias.sum()


arguments = stage.arguments(__doc__)
torch.set_num_threads(1)
ladder = Ladder()
opt = torch.optim.SGD(ladder.parameters(), lr=1e-6)
noise = torch.randn(1024, 512)
for iteration in range(100_000_000):
    if iteration == arguments.steps:
        stage.onset()
    opt.zero_grad()
    ladder(noise).backward()
    opt.step()
