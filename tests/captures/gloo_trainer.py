"""A rank that trains over gloo until its stdin ends. Says "training" after its first steps."""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(os.environ["RANK"]), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ended = threading.Event()


def await_end() -> None:
    """Until whoever holds our stdin lets go of it."""
    sys.stdin.read()
    ended.set()


threading.Thread(target=await_end, daemon=True).start()
more = torch.ones(1)
steps = 0
while more.item():
    time.sleep(
        0.02
    )  # a pace that a crowded machine does not double: a window is one of steps only where the pace holds
    with torch.profiler.record_function(f"update {steps}"):  # by which a trace tells which one it holds
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
    steps += 1
    if steps == 20:
        os.write(1, b"training\n")  # one write: the other rank shares the pipe
    more = torch.zeros(1) if ended.is_set() else torch.ones(1)
    dist.all_reduce(more, dist.ReduceOp.MIN)  # both leave after the same step
dist.destroy_process_group()
