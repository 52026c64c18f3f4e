"""FIELD
source: own, after reports of orphans of an earlier run that still burn CPU ("ps shows eight python processes of yesterday")
mechanism: six orphaned processes of an earlier run compute on the same two cores, in sessions of their own; the training gets a quarter of the time
needs: none
ranks: 1
onset: printed
state: slow
cause: contended_cpu
blame: none
twin: none
"""

import os
import signal
import subprocess
import sys
import time

import torch

signal.alarm(300)
torch.set_num_threads(2)
ORPHAN = "import signal, os\nsignal.alarm(120)\nif os.fork(): os._exit(0)\nsignal.alarm(120)\nx = 1\nwhile True: x = (x * 48271) % 2147483647\n"
net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
begin, crowded = time.monotonic(), False
for step in range(10**9):
    x = torch.randn(256, 512)
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if not crowded and time.monotonic() - begin > 6:
        for _ in range(6):
            subprocess.run(
                [sys.executable, "-c", ORPHAN],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        crowded = True
        print("ONSET", flush=True)
    if step % 100 == 0:
        print("step", step, loss.item(), flush=True)
