"""Somebody sends SIGKILL to the run (a scheduler, an impatient colleague)."""

import os
import signal
import time

import stage
import torch


def impatient_colleague(victim):
    time.sleep(2.0)
    stage.onset(killed=victim)
    os.kill(victim, signal.SIGKILL)


job = os.getpid()
opts = stage.arguments()
stage.outsider(lambda: impatient_colleague(job))
torch.set_num_threads(1)
mixer = torch.nn.Conv1d(64, 64, 1)
adam = torch.optim.Adam(mixer.parameters())
while True:
    adam.zero_grad()
    mixer(torch.randn(8, 64, 512)).square().mean().backward()
    adam.step()
