"""A router in the model moves words from one expert to another until none has more than it can take, which at last is too little."""

import stage
import torch
from torch import nn


class CappedRouter(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.gate, self.experts = nn.Linear(width, experts), experts
        self.capacity = 40

    def forward(self, x):
        wanted = self.gate(x).argmax(-1).tolist()
        loads = [wanted.count(expert) for expert in range(self.experts)]
        word = 0
        while max(loads) > self.capacity:
            fullest, emptiest = loads.index(max(loads)), loads.index(min(loads))
            if wanted[word] == fullest:
                wanted[word] = emptiest
                loads[fullest] -= 1
                loads[emptiest] += 1
            word = (word + 1) % len(wanted)
        return torch.tensor(wanted)


class Mixture(nn.Module):
    def __init__(self, width=64, experts=8):
        super().__init__()
        self.inlet, self.router = nn.Linear(width, width), CappedRouter(width, experts)
        self.experts = nn.Linear(width, experts)

    def forward(self, x):
        hidden = torch.relu(self.inlet(x))
        return self.experts(hidden).gather(-1, self.router(hidden)[:, None])


opt = stage.arguments(__doc__)
mixture = Mixture()
adam = torch.optim.Adam(mixture.parameters(), 1e-4)
for step in range(10**8):
    if step == opt.steps:
        mixture.router.capacity = 31
        stage.onset()
    loss = (mixture(torch.randn(256, 64)) - 1.0).pow(2).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
