"""Look-alike of running out of memory: the GPU refuses one batch, the program halves it and goes on. Healthy."""

import accelerator
import stage
import torch

WIDTH = 4096

args = stage.arguments(__doc__)
card = accelerator.device()
net = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6))).to(card, torch.bfloat16)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
rows = 2 * torch.cuda.get_device_properties(card).total_memory // (2 * WIDTH)
step = 0
while step < 10**9:
    try:
        batch = torch.randn(rows, WIDTH, device=card, dtype=torch.bfloat16)
    except torch.OutOfMemoryError as error:
        print(f"{rows} rows do not fit: {str(error)[:60]}", flush=True)
        rows //= 1024
        continue
    if step == args.steps:
        stage.onset()
    loss = net(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
