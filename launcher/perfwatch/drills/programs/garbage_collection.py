"""Millions of Python objects are alive, and the loop calls gc.collect() "to free memory" again and again."""

import gc

import stage
import surroundings
import torch

EVERY = {"loud": 1, "quiet": 4, "masked": 9}  # steps between collections


def free_memory():
    gc.collect()


args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
history = [{"id": [i]} for i in range(100_000)]
policy = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8))
optimizer = torch.optim.Adam(policy.parameters())
observations = torch.randn(4096, 64)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    policy(observations).logsumexp(1).mean().backward()
    optimizer.step()
    if step >= args.steps and step % EVERY[args.strength] == 0:
        free_memory()
