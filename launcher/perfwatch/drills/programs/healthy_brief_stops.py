"""Look-alike of a stopped process: a snapshotting tool stops it for 0.3 s every 5 s and lets it go on each time."""

import os
import signal
import time

import stage
import torch


def snapshot_tool(target):
    while True:
        time.sleep(4.7)
        os.kill(target, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(target, signal.SIGCONT)


def forever(steps):
    job = os.getpid()
    stage.outsider(lambda: snapshot_tool(job))
    torch.set_num_threads(1)
    block = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 256))
    opt = torch.optim.RAdam(block.parameters())
    n = 0
    while True:
        n += 1
        opt.zero_grad()
        block(torch.randn(128, 256)).square().mean().backward()
        opt.step()
        if n == steps:
            stage.onset()


forever(stage.arguments().steps)
