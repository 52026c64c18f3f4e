"""Look-alike of host-bound Python: the same many layers and kernels, each with plenty to do on the GPU. Healthy."""

import accelerator
import stage
import torch

SHAPES = {"loud": (16384, 4096), "quiet": (8192, 4096), "masked": (32768, 2048)}  # batch, width

args = stage.arguments(__doc__)
card = accelerator.device()
batch, width = SHAPES[args.strength]
layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(30)))
layers = layers.to(card, torch.bfloat16)
optimizer = torch.optim.Adam(layers.parameters(), foreach=False)
inputs = torch.randn(batch, width, device=card, dtype=torch.bfloat16)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = layers(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
