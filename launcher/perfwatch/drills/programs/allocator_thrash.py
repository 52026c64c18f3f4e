"""The cache of GPU memory is emptied again and again, so that every step asks the driver for its memory anew."""

import accelerator
import stage
import surroundings
import torch

EVERY = {"loud": 1, "quiet": 2, "masked": 4}  # steps

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
network = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16))).to(card, torch.bfloat16)
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    inputs = torch.randn(4096, 2048, device=card, dtype=torch.bfloat16)
    loss = network(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del inputs, loss
    if step >= args.steps and step % EVERY[args.strength] == 0:
        torch.cuda.empty_cache()
