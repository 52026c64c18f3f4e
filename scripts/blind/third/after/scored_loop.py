"""FIELD
source: own
mechanism: one function for training and for validation; now it validates for two minutes and a half, in a block without gradients of its caller
needs: none
ranks: 1
onset: printed
state: busy
cause: evaluating
blame: none
twin: ema_nan
"""
import math
import signal
import time

import torch
from torch import nn

signal.alarm(300)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def run(seconds, train):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        x = torch.randn(128, 256)
        loss = (model(x) - x).square().mean()
        if not math.isfinite(loss):
            continue
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


for epoch in range(10**6):
    print("trained", run(8, True), flush=True)
    if epoch == 0:
        print("ONSET", flush=True)
    with torch.no_grad():
        print("validated", run(150, False), flush=True)
