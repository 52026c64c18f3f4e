"""FIELD
source: own
mechanism: three ranks exchange the dense gradient of a large embedding table each step, for a few rows that were touched; nearly all of the time is exchange
needs: none
ranks: 3
onset: printed
state: slow
cause: exposed_communication
blame: none
twin: hf_pair
"""
import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
table = torch.nn.Embedding(120_000, 64)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)


def exchange(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)


for step in range(10**6):
    users = torch.randint(0, 120_000, (256,))
    items = torch.randint(0, 120_000, (256,))
    loss = torch.nn.functional.softplus(-(table(users) * table(items)).sum(1)).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    exchange([table.weight.grad])
    optimizer.step()
    if step == 10 and rank == 0:
        print("ONSET", flush=True)
    if step % 10 == 0 and rank == 0:
        print("step", step, loss.item(), flush=True)
