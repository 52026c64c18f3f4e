"""Look-alike of a stuck worker: each sample waits 8 to 13 s for a rate limit, but the sleep has an end and batches do
come.
"""

import random
import time

import stage
import torch
from torch.utils.data import DataLoader, Dataset

settings = stage.arguments()
torch.set_num_threads(1)


class RateLimited(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        if i >= settings.steps:
            stage.onset()
            time.sleep(random.uniform(8, 13))
        return torch.randn(1024)


net = torch.nn.Linear(1024, 1024)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in DataLoader(RateLimited(), num_workers=2):
    optimizer.zero_grad()
    net(batch).sum().backward()
    optimizer.step()
    print("step", flush=True)
