"""FIELD
source: w86763777/pytorch-ddpm#15 and mseitzer/pytorch-fid#83 ("It gets stuck in computation"; crowsonkb/k-diffusion#78)
mechanism: after some ticks of GAN training the per-class Frechet distance is computed: for each class torch.linalg.eig
    of a large product of covariances, one native call of tens of seconds after another, without output
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host, evaluating
blame: none
twin: none
"""
import json
import pathlib
import signal
import tempfile
import threading
import time

import torch
from torch import nn


class EasyDict(dict):
    __getattr__ = dict.__getitem__


config = EasyDict(z=32, features=1150, classes=60, batch=32, snapshot_after=9.0, samples=1300)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(config.z, 512), nn.Unflatten(1, (32, 4, 4)),
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z):
        return self.body(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(2048, 1))

    def forward(self, x):
        return self.body(x)


class Status(threading.Thread):
    """Writes the state of the run for a dashboard."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.values = path, {}

    def run(self):
        while True:
            self.path.write_text(json.dumps(self.values))
            time.sleep(2)


def moments(images, projection):
    f = torch.relu(images.flatten(1).double() @ projection)
    return f.mean(0), torch.cov(f.T)


def frechet(mu1, s1, mu2, s2):
    eigenvalues, _ = torch.linalg.eig(s1 @ s2)
    root = eigenvalues.sqrt().real.sum()
    return ((mu1 - mu2).square().sum() + s1.trace() + s2.trace() - 2 * root).item()


@torch.no_grad()
def per_class_fid(generator):
    projection = torch.randn(768, config.features, dtype=torch.float64) / 28
    scores = []
    for label in range(config.classes):
        torch.manual_seed(label)
        fake = generator(torch.randn(config.samples, config.z))
        real = torch.rand(config.samples, 3, 16, 16) * 2 - 1
        scores.append(frechet(*moments(real, projection), *moments(fake, projection)))
    return sum(scores) / len(scores)


def main(folder):
    generator, critic = Generator(), Critic()
    g_opt = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.99))
    c_opt = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.99))
    status = Status(pathlib.Path(folder) / "status.json")
    status.start()
    tick, began, scored = 0, time.time(), False
    while True:
        real = torch.rand(config.batch, 3, 16, 16) * 2 - 1
        fake = generator(torch.randn(config.batch, config.z))
        c_loss = nn.functional.softplus(critic(fake.detach())).mean() + nn.functional.softplus(-critic(real)).mean()
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()
        g_loss = nn.functional.softplus(-critic(fake)).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        tick += 1
        status.values = {"tick": tick, "g": g_loss.item(), "c": c_loss.item()}
        if tick % 100 == 0:
            print("tick {tick} loss/g {g:.3f} loss/c {c:.3f}".format(**status.values), flush=True)
        if not scored and time.time() - began > config.snapshot_after:
            scored = True
            print("Evaluating metrics...", flush=True)
            print("ONSET", flush=True)
            print("fid_per_class", per_class_fid(generator), flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as run_dir:
        main(run_dir)
