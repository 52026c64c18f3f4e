"""Two loader workers with little to do, a model with plenty. Healthy."""

import stage
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset


class Speech(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        wave = torch.randn(2048, generator=generator)
        return torch.stft(wave, 254, return_complex=True, window=torch.ones(254)).abs().T, index % 12


def train_one_epoch(model, optimizer, loader, calm):
    for step, (spectra, words) in enumerate(loader):
        if step == calm:
            stage.onset()
        optimizer.zero_grad()
        _, hidden = model(spectra)
        cross_entropy(hidden[-1], words).backward()
        optimizer.step()


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    gru = torch.nn.GRU(128, 160, num_layers=2, batch_first=True)
    sgd = torch.optim.SGD(gru.parameters(), lr=1e-2)
    train_one_epoch(gru, sgd, DataLoader(Speech(), batch_size=16, num_workers=2), args.steps)
