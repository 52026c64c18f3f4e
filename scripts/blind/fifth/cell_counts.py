"""FIELD
source: open-mmlab/mmpretrain#196 (data loading is slow at the start of each epoch; fixed with persistent_workers=True)
mechanism: a tiny fold of microscopy crops gives short epochs; both loaders start a new worker for every epoch, and each worker parses its annotation table again before the first batch
needs: none
ranks: 1
onset: printed
state: slow
cause: worker_respawn
blame: none
twin: none
"""
import csv
import os
import signal
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


def write_annotations(path, rows=120_000):
    rng = np.random.default_rng(0)
    with open(path, "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["crop", "x", "y", "label"])
        for i in range(rows):
            writer.writerow([i % 96, int(rng.integers(48)), int(rng.integers(48)), i % 3])


class Crops(Dataset):
    """Crops with point annotations; the table is opened in the worker, as handles do not survive a fork."""

    def __init__(self, table_path, ids):
        self.table_path, self.ids, self.table = table_path, ids, None

    def open_table(self):
        self.table = {}
        with open(self.table_path, newline="") as source:
            for row in csv.DictReader(source):
                self.table.setdefault(int(row["crop"]), []).append((int(row["x"]), int(row["y"]), int(row["label"])))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        points = self.table[self.ids[index]][:40]
        image = torch.zeros(1, 48, 48)
        for x, y, label in points:
            image[0, y, x] = 0.5 + label / 4
        return image, torch.tensor(float(len({(x, y) for x, y, _ in points})) / 40)


def open_in_worker(_):
    signal.alarm(300)
    torch.set_num_threads(1)
    get_worker_info().dataset.open_table()


def run_epoch(net, loader, optimizer=None):
    total, batches = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for images, counts in loader:
            loss = nn.functional.mse_loss(net(images).squeeze(1), counts)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total, batches = total + loss.item(), batches + 1
    return total / batches


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="cells_")
    table = os.path.join(folder, "points.csv")
    write_annotations(table)
    options = {"batch_size": 16, "num_workers": 1, "worker_init_fn": open_in_worker}
    train = DataLoader(Crops(table, list(range(80))), shuffle=True, **options)
    valid = DataLoader(Crops(table, list(range(80, 96))), **options)
    net = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    start, told = time.monotonic(), False
    for epoch in range(100_000):
        train_loss = run_epoch(net, train, optimizer)
        valid_loss = run_epoch(net, valid)
        if epoch % 4 == 0:
            print(f"epoch {epoch}: train {train_loss:.4f} valid {valid_loss:.4f}", flush=True)
        if not told and time.monotonic() - start > 11:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
