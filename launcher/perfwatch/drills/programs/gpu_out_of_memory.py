"""The batch grows until the GPU refuses a tensor larger than all of its memory; the error ends the program."""

import accelerator
import stage
import torch

WIDTH = 1024

args = stage.arguments(__doc__)
card = accelerator.device()
net = torch.nn.Linear(WIDTH, WIDTH).to(card)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(10**9):
    rows = 4096
    if step == args.steps:
        stage.onset()
        rows = 2 * torch.cuda.get_device_properties(card).total_memory // (4 * WIDTH)
    loss = net(torch.randn(rows, WIDTH, device=card)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
