"""FIELD
source: own (a job that may use the machine only within a window)
mechanism: after some training the loop sleeps until the next window opens, in one sleep of a hundred seconds
needs: none
ranks: 1
onset: printed
state: busy, healthy, slow
cause: any
blame: none
twin: none
"""

import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.Linear(256, 256)
opt = torch.optim.Adam(net.parameters())


def until_window(seconds):
    print(f"outside of the window, sleeping {seconds} s", flush=True)
    time.sleep(seconds)


while True:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        x = torch.randn(64, 256)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("loss", loss.item(), flush=True)
    print("ONSET", flush=True)
    until_window(100)
