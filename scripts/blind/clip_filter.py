"""FIELD
source: https://github.com/NVlabs/long-video-gan/issues/4 and https://github.com/huggingface/datasets/pull/8577 (endless repetition of a data set that yields nothing)
mechanism: the infinite iterator starts the loader again and again because the filter of the new stage rejects every sample, so next() never returns
needs: cpu
ranks: 1
onset: printed
state: hung
cause: endless_python
blame: endless (clip_filter.py)
twin: none
"""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class Clips(IterableDataset):
    def __init__(self, n, min_frames):
        self.n, self.min_frames = n, min_frames

    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        for _ in range(self.n):
            frames = int(torch.randint(8, 64, (), generator=g))
            if frames >= self.min_frames:
                yield torch.randn(16, 64, generator=g)


def endless(loader):
    epoch = 0
    while True:
        for batch in loader:
            yield batch
        epoch += 1


def main():
    torch.set_num_threads(1)
    model = nn.GRU(64, 192, num_layers=2, batch_first=True)
    head = nn.Linear(192, 64)
    opt = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
    for stage, min_frames in (("short", 8), ("long", 64)):
        batches = endless(DataLoader(Clips(1000, min_frames), batch_size=16))
        if stage == "long":
            print("ONSET", flush=True)
        for step in range(400):
            x = next(batches)
            loss = (head(model(x[:, :-1])[0]) - x[:, 1:]).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 100 == 0:
                print(stage, step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
