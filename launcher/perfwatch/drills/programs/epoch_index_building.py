"""Persistent workers, and an index that the training loop builds anew for each epoch: no new processes."""

import stage
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Corpus(Dataset):
    def __init__(self):
        self.data = torch.randn(960, 256)
        self.order = list(range(960))

    def __len__(self):
        return 960

    def __getitem__(self, position):
        return self.data[self.order[position] % 960]

    def build_index(self, epoch):
        keyed = [(hash((epoch, i % 977)), i) for i in range(1_500_000)]
        self.order = [i for _, i in sorted(keyed)][:960]


def train():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    corpus = Corpus()
    batches = DataLoader(corpus, batch_size=16, num_workers=2, persistent_workers=True)
    autoencoder = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
    adam = torch.optim.Adam(autoencoder.parameters())
    stage.onset(steps=args.steps)
    for epoch in range(1_000_000):
        corpus.build_index(epoch)
        for batch in batches:
            adam.zero_grad()
            nn.functional.mse_loss(autoencoder(batch), batch).backward()
            adam.step()


if __name__ == "__main__":
    train()
