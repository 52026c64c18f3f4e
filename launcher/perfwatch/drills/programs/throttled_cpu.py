"""A CPU quota (a container's limit) below what the loop wants: it is stopped for a part of every 100 ms."""

import stage
import surroundings
import torch

CORES = {"loud": 0.2, "quiet": 0.5, "masked": 0.7}

args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
lstm = torch.nn.LSTM(64, 128, batch_first=True)
head = torch.nn.Linear(128, 1)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()])
series = torch.randn(32, 48, 64)
for step in range(100_000_000):
    if step == args.steps:
        surroundings.limit_cpu(CORES[args.strength])
        stage.onset()
    hidden, _ = lstm(series)
    loss = head(hidden[:, -1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
