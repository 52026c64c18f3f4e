"""The gradients overflow: the scaler skips every optimizer step, and the loop turns for nothing."""

import stage
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(1)
generator = torch.nn.Sequential(torch.nn.Linear(128, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 128))
optimizer = torch.optim.Adam(generator.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
batch = torch.randn(512, 128)
for step in range(100_000_000):
    if step == args.steps:
        batch = batch * float("inf")
        stage.onset()
    optimizer.zero_grad()
    loss = generator(batch).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
