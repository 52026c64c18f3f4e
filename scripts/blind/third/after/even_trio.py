"""FIELD
source: own
mechanism: three ranks of DDP with equal convolutions
needs: none
ranks: 3
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: uneven_pair
"""
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten(), torch.nn.LazyLinear(4))
net(torch.zeros(1, 3, 24, 24))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10**6):
    loss = model(torch.rand(32, 3, 24, 24)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 15 and dist.get_rank() == 0:
        print("ONSET", flush=True)
