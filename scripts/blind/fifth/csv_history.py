"""FIELD
source: Lightning-AI/pytorch-lightning#17725 (run_training_epoch takes longer with more epochs: the CSV logger writes its whole history again)
mechanism: a resumed run; the CSV logger keeps every row in memory and writes the whole file again at each logging step, which takes most of the time of a step
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_output
blame: save ()
twin: none
"""

import csv
import os
import signal
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class CSVLogger:
    NAME = "metrics.csv"

    def __init__(self, folder, flush_every=1):
        self.path = os.path.join(folder, self.NAME)
        self.flush_every = flush_every
        self.rows = []
        self.calls = 0
        if os.path.exists(self.path):
            with open(self.path, newline="") as handle:
                self.rows = list(csv.DictReader(handle))

    def log_metrics(self, metrics, step):
        self.rows.append({"step": step, **{k: round(float(v), 6) for k, v in metrics.items()}})
        self.calls += 1
        if self.calls % self.flush_every == 0:
            self.save()

    def save(self):
        keys = sorted({key for row in self.rows[-50:] for key in row})
        with open(self.path, "w", newline="") as handle:
            writer = csv.DictWriter(handle, fieldnames=keys)
            writer.writeheader()
            writer.writerows(self.rows)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 128))

    def training_step(self, batch):
        (x,) = batch
        code = self.encoder(x)
        rebuilt = nn.functional.mse_loss(self.decoder(code), x)
        sparse = code.abs().mean()
        return {"loss": rebuilt + 0.01 * sparse, "rebuilt": rebuilt, "sparse": sparse}


class Trainer:
    def __init__(self, module, logger, first_step):
        self.module, self.logger, self.step = module, logger, first_step
        self.opt = torch.optim.AdamW(module.parameters(), 1e-3)
        self.begin, self.told = time.monotonic(), False

    def run_training_epoch(self, loader):
        for batch in loader:
            out = self.module.training_step(batch)
            self.opt.zero_grad()
            out["loss"].backward()
            norm = nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            self.opt.step()
            self.step += 1
            self.logger.log_metrics({**out, "grad_norm": norm, "lr": 1e-3}, self.step)
            if not self.told and time.monotonic() - self.begin > 10:
                self.told = True
                print("ONSET", flush=True)
        return out["loss"].item()


def earlier_run(folder, steps):
    """The metrics of the run that this one resumes."""
    with open(os.path.join(folder, CSVLogger.NAME), "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["grad_norm", "loss", "lr", "rebuilt", "sparse", "step"])
        for step in range(steps):
            writer.writerow([0.5, 1 / (step + 1), 1e-3, 0.9 / (step + 1), 0.1, step])


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        earlier_run(root, 40_000)
        data = TensorDataset(torch.randn(2048, 128))
        trainer = Trainer(Module(), CSVLogger(root), 40_000)
        for epoch in range(10000):
            start = time.monotonic()
            value = trainer.run_training_epoch(DataLoader(data, batch_size=64, shuffle=True))
            print(f"epoch {epoch} loss {value:.4f} took {time.monotonic() - start:.1f} s", flush=True)
