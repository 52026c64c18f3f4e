"""The whole training runs inside torch's profiler, which nobody gave a schedule: it keeps every operation of every step."""

import stage
import torch
from torch.profiler import ProfilerActivity, profile

args = stage.arguments(__doc__)
torch.set_num_threads(1)
tower = torch.nn.Sequential(*(layer for _ in range(12) for layer in (torch.nn.Linear(96, 96), torch.nn.Tanh())))
adam = torch.optim.Adam(tower.parameters(), foreach=False)


def learn(rows):
    adam.zero_grad()
    tower(rows).square().mean().backward()
    adam.step()


for _ in range(args.steps):
    learn(torch.randn(32, 96))
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True):
    stage.onset()
    while True:
        learn(torch.randn(32, 96))
