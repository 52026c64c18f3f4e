"""A rank that srun has started, as many programs are written: it tells torch itself who it is. Rank 1 stops coming.

slurm_rank.py PORT
"""

import os
import sys
import time

os.environ |= {
    "RANK": os.environ["SLURM_PROCID"],
    "WORLD_SIZE": os.environ["SLURM_NTASKS"],
    "LOCAL_RANK": os.environ["SLURM_LOCALID"],
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": sys.argv[1],
    "OMP_NUM_THREADS": "1",
}

import torch
import torch.distributed as dist


def wait_for_the_tokenizer() -> None:
    """For ever."""
    time.sleep(1_000_000)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(10**9):
        if step == 20 and dist.get_rank() == 1:
            wait_for_the_tokenizer()
        sgd.zero_grad()
        net(torch.randn(8, 64)).square().mean().backward()
        sgd.step()


main()
