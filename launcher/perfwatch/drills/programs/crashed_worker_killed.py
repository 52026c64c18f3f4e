"""Look-alike of ``killed``: a DataLoader worker is killed, torch notices, and the run crashes with a RuntimeError."""

import os
import signal

import stage
import torch
from torch.utils.data import DataLoader, Dataset


class Doomed(Dataset):
    def __init__(self, last):
        self.last = last

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        if i == self.last:
            stage.onset()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(200)


cfg = stage.arguments()
torch.set_num_threads(1)
net = torch.nn.Linear(200, 200)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(Doomed(cfg.steps * 400), batch_size=20, num_workers=2):
    sgd.zero_grad()
    net(x).sum().backward()
    sgd.step()
