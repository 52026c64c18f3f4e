"""Look-alike of autotuning: cuDNN tries its convolutions once, at the first step, and then training goes on. Healthy."""

import accelerator
import stage
import torch

SIZES = {"loud": (256, 256), "quiet": (128, 256), "masked": (256, 384)}  # images, channels

args = stage.arguments(__doc__)
card = accelerator.device()
torch.backends.cudnn.benchmark = True
images, channels = SIZES[args.strength]
layers = [torch.nn.Conv2d(channels, channels, 3, padding=1, device=card, dtype=torch.bfloat16) for _ in range(6)]
tower = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(tower.parameters(), lr=1e-3)
batch = torch.randn(images, channels, 56, 56, device=card, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = tower(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
