"""FIELD
source: Lightning-AI/pytorch-lightning#10389 (very slow between epochs), webdataset/webdataset#333 (stuck for some time after each epoch)
mechanism: short epochs with spawned workers that are not persistent: each epoch starts a train worker and a validation worker anew, each imports torch again; the steps themselves are quick
needs: none
ranks: 1
onset: printed
state: slow
cause: worker_respawn
blame: none
twin: none
"""

import dataclasses
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclasses.dataclass
class Settings:
    epochs: int = 100000
    batch: int = 32
    workers: int = 1
    start_method: str = "spawn"
    lr: float = 2e-3


class Melodies(Dataset):
    """Predict the next pitch of a random walk over a scale."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(self.seed * 100003 + index)
        steps = torch.randint(-2, 3, (25,), generator=gen)
        notes = (24 + steps.cumsum(0)).clamp(0, 47)
        return notes[:-1], notes[1:]


class GRUModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(48, 32)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 48)

    def loss(self, notes, following):
        out = self.head(self.gru(self.embed(notes))[0])
        return nn.functional.cross_entropy(out.flatten(0, 1), following.flatten())


def worker_init(_worker):
    signal.alarm(300)
    torch.set_num_threads(1)


class DataModule:
    def __init__(self, settings):
        self.settings = settings
        self.train, self.valid = Melodies(640, 1), Melodies(128, 2)

    def _loader(self, dataset, shuffle):
        return DataLoader(
            dataset, batch_size=self.settings.batch, shuffle=shuffle, num_workers=self.settings.workers,
            multiprocessing_context=self.settings.start_method, worker_init_fn=worker_init,
        )

    def train_dataloader(self):
        return self._loader(self.train, True)

    def val_dataloader(self):
        return self._loader(self.valid, False)


def fit(settings):
    data, model = DataModule(settings), GRUModel()
    opt = torch.optim.Adam(model.parameters(), settings.lr)
    begin, told = time.monotonic(), False
    for epoch in range(settings.epochs):
        model.train()
        for batch in data.train_dataloader():
            loss = model.loss(*batch)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            values = [model.loss(*batch).item() for batch in data.val_dataloader()]
        clock = time.monotonic() - begin
        print(f"{clock:6.1f}s epoch {epoch} train {loss.item():.3f} val {sum(values) / len(values):.3f}", flush=True)
        if not told and clock > 8:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    fit(Settings())
