"""Look-alike of a thrashing allocator: batches of ever new sizes, and room enough to keep what was allocated. Healthy."""

import random

import accelerator
import stage
import torch

ROWS = {"loud": (20_000, 90_000), "quiet": (40_000, 60_000), "masked": (20_000, 150_000)}

args = stage.arguments(__doc__)
card = accelerator.device()
network = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).to(card, torch.bfloat16)
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    rows = random.randrange(*ROWS[args.strength])
    loss = network(torch.randn(rows, 4096, device=card, dtype=torch.bfloat16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
