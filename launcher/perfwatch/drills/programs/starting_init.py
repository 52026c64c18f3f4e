"""Before the first step: a very large model is initialised layer by layer, orthogonally, which takes minutes."""

import stage
import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            layer = nn.Linear(width, width)
            nn.init.orthogonal_(layer.weight)
            self.layers.append(layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    stage.onset()
    model = Tower(width=700, depth=3000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 700)).square().mean().backward()
        optimizer.step()
