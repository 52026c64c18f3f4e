"""Look-alike of a dead worker: a zombie child that nobody reaps, while training goes on."""

import subprocess

import stage
import torch

VERSION = []


def note_version():
    VERSION.append(subprocess.Popen(["/bin/true"]))  # never waited for


def fit(steps):
    net = torch.nn.Sequential(torch.nn.Linear(400, 800), torch.nn.ReLU(), torch.nn.Linear(800, 400))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    step = 0
    while True:
        x = torch.randn(128, 400)
        opt.zero_grad()
        (net(x) - x).abs().mean().backward()
        opt.step()
        step += 1
        if step == steps:
            note_version()
            stage.onset()


torch.set_num_threads(1)
fit(stage.arguments().steps)
