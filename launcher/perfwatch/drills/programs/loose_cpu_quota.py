"""A CPU quota is there, as in every container, but the one busy thread never reaches it. Healthy."""

import stage
import surroundings
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(1)
gru = torch.nn.GRU(64, 128, batch_first=True)
optimizer = torch.optim.SGD(gru.parameters(), lr=1e-3)
signal = torch.randn(32, 48, 64)
surroundings.limit_cpu(1.6)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    output, _ = gru(signal)
    output.square().mean().backward()
    optimizer.step()
