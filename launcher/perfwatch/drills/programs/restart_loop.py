"""torchrun starts a training that fails after a few steps, every time, and torchrun starts it again."""

import os
import sys
import time

import stage
import torch

if "TORCHELASTIC_RESTART_COUNT" not in os.environ:
    again = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=10000", "--monitor-interval=0.2"]
    os.execv(sys.executable, [sys.executable, *again, *sys.argv])

args = stage.arguments(__doc__)
torch.set_num_threads(1)
net = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
stage.onset(restart=int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
for _ in range(40):
    optimizer.zero_grad()
    net(torch.randn(512, 512)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
raise FileNotFoundError("shard-00041.tar")
