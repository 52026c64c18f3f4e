"""FIELD
source: https://github.com/pytorch/pytorch/issues/15849, https://github.com/open-mmlab/mmhuman3d/pull/233 and https://github.com/huggingface/diffusers/pull/5218 (workers are created anew for each short epoch)
mechanism: an epoch is a handful of batches, and each one starts its spawned workers again, so nearly all the time goes into starting Python and importing torch
needs: cpu
ranks: 1
onset: printed
state: slow
cause: worker_respawn
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Support(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 3, 32, 32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i % 5


def epoch(model, opt, loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main(max_seconds=600):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                          nn.Flatten(), nn.Linear(32 * 49, 5))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = time.time()
    base = DataLoader(Support(12000), batch_size=32)
    for k in range(3):
        print("base", k, epoch(model, opt, base), flush=True)
    print("ONSET", flush=True)
    shots = DataLoader(Support(25), batch_size=5, shuffle=True, num_workers=2, multiprocessing_context="spawn")
    k = 0
    while time.time() - start < max_seconds:
        loss = epoch(model, opt, shots)
        k += 1
        print(f"few-shot epoch {k} loss {loss:.3f} at {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
