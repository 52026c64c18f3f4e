"""Ranks that were started by hand, without torchrun; rank 1 is killed (the kernel does that when memory runs out).

NCCL does not notice: the others wait for it. (gloo does: its connections break.)
"""

import os
import signal
import socket
import subprocess
import sys

import stage


def start_all(count: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, *sys.argv]
    children = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(count)
    ]
    for child in children:
        child.wait()


def train(args) -> None:
    import ranks
    import torch
    import torch.distributed as dist

    device = ranks.join(args)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(10**9):
        if step == args.steps and dist.get_rank() == 1:
            stage.onset(rank=1)
            os.kill(os.getpid(), signal.SIGKILL)
        sgd.zero_grad()
        loss = net(torch.randn(64, 512, device=device)).square().mean()
        loss.backward()
        sgd.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    options = stage.arguments(__doc__)
    if "RANK" in os.environ:
        train(options)
    else:
        start_all(options.ranks)
