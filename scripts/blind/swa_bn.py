"""FIELD
source: own (torch.optim.swa_utils.update_bn at the end of the averaging phase; cf. LeelaChessZero/lczero-training#50, left out there for the time it takes)
mechanism: the averaged model passes over the training set in train mode to recompute batch-norm statistics, without optimizer
needs: cpu
ranks: 1
onset: printed
state: busy
cause: evaluating, computing_on_host
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(), nn.MaxPool2d(2))


class Planes(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        return torch.rand(3, 64, 64, generator=gen), i % 12


def within(loader, seconds):
    began = time.time()
    for batch in loader:
        yield batch
        if time.time() - began > seconds:
            return


def main():
    model = nn.Sequential(block(3, 32), block(32, 64), block(64, 96), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 12))
    averaged = AveragedModel(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = SWALR(opt, swa_lr=0.02)
    warm = DataLoader(Planes(640), batch_size=32, shuffle=True)
    for epoch in range(2):
        for x, y in warm:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        averaged.update_parameters(model)
        schedule.step()
        print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    print("ONSET", flush=True)
    update_bn(within(DataLoader(Planes(400_000), batch_size=32, shuffle=True), 400), averaged)
    for x, y in warm:
        loss = nn.functional.cross_entropy(averaged(x), y)
        opt.zero_grad()
    print("swa loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
