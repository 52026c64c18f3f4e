"""A worker decodes on the one core that the job is confined to; what a neighbour burns on the others is none of its business."""

import os

import stage
import torch
from torch.utils.data import DataLoader, Dataset

SLOWER = 60
args = stage.arguments(__doc__)
everywhere = os.sched_getaffinity(0)
core = min(everywhere)
os.sched_setaffinity(0, {core})
torch.set_num_threads(1)


def burn():
    os.sched_setaffinity(0, everywhere - {core} or everywhere)
    while True:
        pass


class Scans(Dataset):
    def __len__(self):
        return 10**8

    def __getitem__(self, index):
        if index == args.steps * 8:
            stage.onset()
        return unfold(SLOWER if index >= args.steps * 8 else 1)


def unfold(times):
    scan = torch.rand(64, 64)
    for _ in range(times):
        scan = torch.fft.ifft2(torch.fft.fft2(scan)).real.sort(0).values
    return scan.flatten()


def main():
    for _ in range(2):
        stage.outsider(burn)
    head = torch.nn.Sequential(torch.nn.Linear(64 * 64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 32))
    adam = torch.optim.Adam(head.parameters())
    for scans in DataLoader(Scans(), batch_size=8, num_workers=1):
        adam.zero_grad()
        head(scans).square().mean().backward()
        adam.step()


if __name__ == "__main__":
    main()
