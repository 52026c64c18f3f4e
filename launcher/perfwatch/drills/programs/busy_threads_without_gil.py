"""A background thread compresses logs without a pause, in native code that has released the GIL. Healthy."""

import os
import threading
import zlib

import stage
import torch

options = stage.arguments(__doc__)
torch.set_num_threads(1)
log = os.urandom(4 << 20)


def compress_for_ever():
    while True:
        zlib.compress(log, 9)


layers = [torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)]
net = torch.nn.Sequential(*layers)
adam = torch.optim.Adam(net.parameters(), foreach=False)
for step in range(100_000_000):
    if step == options.steps:
        threading.Thread(target=compress_for_ever, name="compressor", daemon=True).start()
        stage.onset()
    adam.zero_grad()
    net(torch.randn(256, 64)).square().mean().backward()
    adam.step()
