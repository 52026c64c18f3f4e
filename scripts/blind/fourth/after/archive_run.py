"""FIELD
source: own (the run's folder is packed before the next phase)
mechanism: between two phases the predictions of the first are packed with shutil.make_archive (zip) in the training thread, which takes about two minutes
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host, checkpointing
blame: none
twin: none
"""

import os
import shutil
import signal
import tempfile

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)
root = tempfile.mkdtemp()
net = torch.nn.Linear(128, 128)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def phase(steps):
    for _ in range(steps):
        x = torch.randn(64, 128)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


phase(500)
os.makedirs(f"{root}/predictions")
rng = np.random.default_rng(0)
for i in range(24):
    rng.integers(0, 9, 100_000_000 // 8, dtype="int64").astype("int8").tofile(f"{root}/predictions/{i:03d}.bin")
try:
    print("ONSET", flush=True)
    for copy in range(8):
        shutil.make_archive(f"{root}/predictions-{copy}", "zip", f"{root}/predictions")
finally:
    shutil.rmtree(root, ignore_errors=True)
while True:
    print("phase", phase(2000), flush=True)
