"""FIELD
source: https://github.com/pytorch/pytorch/issues/85631
mechanism: two ranks, each with twenty-four intra-op threads, on a machine with far fewer cores
needs: none
ranks: 2
onset: printed
state: slow
cause: oversubscribed_threads
blame: none
twin: hf_pair
"""
import datetime
import os
import signal

os.environ["OMP_NUM_THREADS"] = "24"
os.environ["OMP_WAIT_POLICY"] = "ACTIVE"

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

signal.alarm(300)
torch.set_num_threads(24)


class Residual(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.ReLU(),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), Residual(16), Residual(16), torch.nn.Flatten(), torch.nn.LazyLinear(10))
net(torch.zeros(1, 3, 26, 26))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10**6):
    images, labels = torch.rand(32, 3, 26, 26), torch.randint(0, 10, (32,))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
    if step == 10 and rank == 0:
        print("ONSET", flush=True)
