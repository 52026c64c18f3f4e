"""A DataLoader worker rejects every crop it draws, for ever: its CPU is busy, its batch never comes."""

import random

import stage
import torch
from torch.utils.data import DataLoader, Dataset

conf = stage.arguments()


def sample_crop(width, minimum):
    left, right = 0, 0
    while right - left < minimum:
        left, right = sorted(random.choices(range(width), k=2))
    return left, right


class Scans(Dataset):
    def __getitem__(self, k):
        step, minimum = k // 8, 30
        if step >= conf.steps and (conf.strength == "loud" or step % 2):
            minimum = 300  # wider than the scan
            stage.onset()
        left, right = sample_crop(200, minimum)
        return torch.randn(200)[left:right][:30]

    def __len__(self):
        return 8_000_000


def run():
    torch.set_num_threads(1)
    encoder = torch.nn.GRU(1, 32, batch_first=True)
    rmsprop = torch.optim.RMSprop(encoder.parameters())
    for crops in DataLoader(Scans(), batch_size=8, num_workers=2):
        states, _ = encoder(crops.unsqueeze(-1))
        rmsprop.zero_grad()
        states.pow(2).mean().backward()
        rmsprop.step()


if __name__ == "__main__":
    run()
