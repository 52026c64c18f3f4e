"""FIELD
source: https://github.com/pytorch/pytorch/issues/6267
mechanism: two processes are spawned and join a group that was declared to have three members; initialisation waits for the third
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_rendezvous
blame: worker (initialises), run
twin: none
"""
import datetime
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(index, port, world):
    signal.alarm(300)
    torch.set_num_threads(1)
    net = torch.nn.Linear(64, 64)
    if index == 0:
        print("ONSET", flush=True)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=world,
        timeout=datetime.timedelta(minutes=30),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        loss = net(torch.randn(32, 64)).square().mean()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()


def run():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes, per_node = 1, 2
    mp.spawn(worker, args=(port, nodes * 3), nprocs=per_node)


if __name__ == "__main__":
    signal.alarm(300)
    run()
