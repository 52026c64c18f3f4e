"""FIELD
source: mit-han-lab/gan-compression#47, training gets slower and slower because all losses so far are drawn again at each step, rebuilt with an SVG that is written in Python
mechanism: after the warm-up the callback draws the loss of each of 160 probes from the first step on, after each step: formatting and writing the picture takes several times the step, and grows with it
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_output,regressed,host_bound_python
blame: none
twin: none
"""
import pathlib
import signal
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

PROBES = 160


class Blobs(IterableDataset):
    def __iter__(self):
        gen = torch.Generator().manual_seed(3)
        grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
        while True:
            centre = torch.rand(2, 1, 1, generator=gen) * 16
            yield torch.exp(-((grid - centre) ** 2).sum(0) / 8).flatten()


class Gan:
    def __init__(self):
        self.generator = nn.Sequential(nn.Linear(16, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 256), nn.Sigmoid())
        self.critic = nn.Sequential(nn.Linear(256, 192), nn.LeakyReLU(0.2), nn.Linear(192, 192), nn.LeakyReLU(0.2), nn.Linear(192, 1))
        self.g_opt = torch.optim.Adam(self.generator.parameters(), 2e-4, betas=(0.5, 0.9))
        self.c_opt = torch.optim.Adam(self.critic.parameters(), 2e-4, betas=(0.5, 0.9))
        self.noise = torch.randn(PROBES, 16)

    def step(self, real):
        fake = self.generator(torch.randn(len(real), 16))
        c_loss = (1 - self.critic(real)).relu().mean() + (1 + self.critic(fake.detach())).relu().mean()
        self.c_opt.zero_grad()
        c_loss.backward()
        self.c_opt.step()
        g_loss = -self.critic(fake).mean()
        self.g_opt.zero_grad()
        g_loss.backward()
        self.g_opt.step()
        with torch.no_grad():
            return self.critic(self.generator(self.noise))[:, 0].tolist()


class Curves:
    """All curves in one picture, for the wiki page."""

    def __init__(self, path, width=1200, height=400):
        self.path, self.width, self.height = path, width, height
        self.history = [[] for _ in range(PROBES)]

    def add(self, values):
        for line, value in zip(self.history, values, strict=True):
            line.append(value)

    def draw(self):
        n = len(self.history[0])
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}">']
        for k, line in enumerate(self.history):
            points = " ".join(f"{i * self.width / n:.1f},{self.height / 2 - 50 * v:.1f}" for i, v in enumerate(line))
            parts.append(f'<polyline points="{points}" fill="none" stroke="hsl({k * 2},60%,50%)"/>')
        self.path.write_text("\n".join(parts) + "</svg>")


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gan = Gan()
    loader = DataLoader(Blobs(), batch_size=64, num_workers=1)
    with tempfile.TemporaryDirectory() as folder:
        curves = Curves(pathlib.Path(folder) / "curves.svg")
        drawing = False
        begin = time.monotonic()
        for step, real in enumerate(loader):
            curves.add(gan.step(real))
            if not drawing and time.monotonic() - begin > 18:
                drawing = True
                print("warm-up done, drawing", flush=True)
                print("ONSET", flush=True)
            if drawing:
                curves.draw()
            if step % 50 == 0:
                print(f"iter {step} {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
