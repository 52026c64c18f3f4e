"""One optimizer step for every sixteen backward passes: gradient accumulation, on purpose. Healthy."""

import stage
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(1)
actor = torch.nn.Sequential(torch.nn.Linear(200, 800), torch.nn.Tanh(), torch.nn.Linear(800, 200))
optimizer = torch.optim.Adam(actor.parameters())
micro_batch = torch.randn(256, 200)
for count in range(1, 100_000_000):
    (actor(micro_batch).square().mean() / 16).backward()
    if count % 16 == 0:
        optimizer.step()
        optimizer.zero_grad()
    if count == args.steps:
        stage.onset()
