"""Large frames in ordinary (pageable) memory are copied to the GPU in each step, and a small network looks at them."""

import accelerator
import stage
import surroundings
import torch

FRAMES = {"loud": 1024, "quiet": 256, "masked": 96}  # of 768 KiB each
GROUPS = {"loud": 1, "quiet": 4, "masked": 8}  # how often the network looks at them

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 7, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
).to(card)
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
video = torch.rand(FRAMES[args.strength], 3, 256, 256)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    frames = video.to(card)
    for _ in range(GROUPS[args.strength]):
        loss = network(frames).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
