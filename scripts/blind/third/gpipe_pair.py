"""FIELD
source: own
mechanism: a pipeline of two even stages with four micro-batches by send and recv; it works as it should, with the bubble that such a schedule has
needs: none
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: two_recv
"""
import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
MICRO, ROWS, WIDTH = 4, 96, 512
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
stage = torch.nn.Sequential(*[
    layer for _ in range(5) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
])
optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)


def forward_all():
    kept, sends = [], []
    for _ in range(MICRO):
        if rank == 0:
            x = torch.randn(ROWS, WIDTH)
        else:
            x = torch.empty(ROWS, WIDTH)
            dist.recv(x, 0)
            x.requires_grad_()
        y = stage(x)
        kept.append((x, y))
        if rank == 0:
            sends.append(dist.isend(y.detach(), 1))
    return kept, sends


def backward_all(kept, sends):
    total = 0.0
    for x, y in reversed(kept):
        if rank == 1:
            loss = (y - 0.5).square().mean()
            loss.backward()
            total += loss.item()
            sends.append(dist.isend(x.grad, 0))
        else:
            grad = torch.empty(ROWS, WIDTH)
            dist.recv(grad, 1)
            y.backward(grad)
    for one in sends:
        one.wait()
    return total / MICRO


for step in range(10**6):
    optimizer.zero_grad()
    loss = backward_all(*forward_all())
    optimizer.step()
    if step == 20 and rank == 0:
        print("ONSET", flush=True)
    if step % 10 == 0 and rank == 1:
        print("step", step, "loss", loss, flush=True)
