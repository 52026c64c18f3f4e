"""Look-alike of the wrong precision: fp32 too, but what takes the time is memory: an optimizer over a huge embedding table."""

import accelerator
import stage
import torch

ROWS = {"loud": 4_000_000, "quiet": 1_000_000, "masked": 8_000_000}

args = stage.arguments(__doc__)
card = accelerator.device()
table = torch.nn.Parameter(torch.randn(ROWS[args.strength], 128, device=card))
optimizer = torch.optim.Adam([table], foreach=False)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    picked = torch.randint(len(table), (65536,), device=card)
    loss = table[picked].square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
