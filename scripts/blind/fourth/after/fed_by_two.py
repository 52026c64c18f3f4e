"""FIELD
source: own (an ordinary run with two light loader workers)
mechanism: a convolutional network trains on the CPU, its two workers wait for it; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""

import signal

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Cheap(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.rand(3, 48, 48), index % 10


if __name__ == "__main__":
    signal.alarm(300)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 48, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 10),
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step, (x, y) in enumerate(DataLoader(Cheap(), batch_size=32, num_workers=2, persistent_workers=True)):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 20:
            print("ONSET", flush=True)
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
