"""A network of very many very small layers, one kernel each: Python and the dispatcher are slower than the GPU."""

import accelerator
import stage
import surroundings
import torch

SHAPES = {"loud": (16, 32), "quiet": (256, 256), "masked": (1024, 512)}  # batch, width

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
batch, width = SHAPES[args.strength]
layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(60)))
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
    if step % 100 == 0:
        print(step, loss.item(), flush=True)
