"""Activations and norms written out one by one over large tensors, nothing fused: the GPU's memory is the limit."""

import accelerator
import stage
import surroundings
import torch

SHAPES = {
    "loud": (1 << 16, 8192, 0),
    "quiet": (1 << 14, 4096, 0),
    "masked": (1 << 15, 4096, 1),
}  # rows, width, products

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
rows, width, products = SHAPES[args.strength]
scale = torch.nn.Parameter(torch.ones(width, device=card, dtype=torch.bfloat16))
shift = torch.nn.Parameter(torch.zeros(width, device=card, dtype=torch.bfloat16))
mix = torch.nn.Linear(width, 512, device=card, dtype=torch.bfloat16)
optimizer = torch.optim.SGD([scale, shift, *mix.parameters()], lr=1e-3)
x = torch.randn(rows, width, device=card, dtype=torch.bfloat16)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    y = x
    for _ in range(4):
        y = torch.tanh(y * scale + shift) * torch.sigmoid(y) + x
    loss = y.mean() + sum(mix(y).mean() for _ in range(products))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
