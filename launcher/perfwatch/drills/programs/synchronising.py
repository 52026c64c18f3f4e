"""Every layer is checked for bad numbers on the host, each step: the GPU runs dry at every check."""

import accelerator
import stage
import surroundings
import torch

SHAPES = {"loud": (64, 256), "quiet": (1024, 1024), "masked": (2048, 1024)}  # batch, width


class Checked(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x).relu()
        if y.isnan().any().item():
            raise ValueError("not a number")
        return y


args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
batch, width = SHAPES[args.strength]
tower = torch.nn.Sequential(*(Checked(width, width) for _ in range(24))).to(card, torch.bfloat16)
optimizer = torch.optim.SGD(tower.parameters(), lr=1e-3)
inputs = torch.randn(batch, width, device=card, dtype=torch.bfloat16)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = tower(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in tower.parameters():
        if parameter.grad.abs().max().item() > 10.0:
            parameter.grad.mul_(0.1)
    optimizer.step()
