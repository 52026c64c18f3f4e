"""Look-alike of a broken GPU: an index beyond the table trips an assertion in a kernel, and CUDA gives up. The program's fault."""

import accelerator
import stage
import torch

args = stage.arguments(__doc__)
card = accelerator.device()
table = torch.nn.Embedding(1000, 256).to(card)
optimizer = torch.optim.SGD(table.parameters(), lr=1e-3)
for step in range(10**9):
    words = torch.randint(1000, (4096,), device=card)
    if step == args.steps:
        stage.onset()
        words[17] = 1000
    loss = table(words).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
