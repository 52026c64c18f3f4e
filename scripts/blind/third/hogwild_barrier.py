"""FIELD
source: https://github.com/pytorch/pytorch/issues/1355
mechanism: three Hogwild processes meet in a multiprocessing barrier after each round; one is killed by its own native abort, and the two others wait in the barrier for it, the parent for them
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker, deadlocked_locks, blocked_child, unknown
blame: hogwild (waits in the barrier), launch (joins)
twin: none
"""
import os
import signal

import torch
import torch.multiprocessing as mp
from torch import nn


def hogwild(index, shared, barrier):
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(index)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.01)
    for round_number in range(10**6):
        for _ in range(20):
            x = torch.randn(128, 64)
            loss = (shared(x) - x.abs()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if index == 0:
            print("round", round_number, loss.item(), flush=True)
        if round_number == 40 and index == 1:
            print("ONSET", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        barrier.wait()


def launch(count):
    shared = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).share_memory()
    barrier = mp.get_context("fork").Barrier(count)
    members = [mp.get_context("fork").Process(target=hogwild, args=(i, shared, barrier)) for i in range(count)]
    for member in members:
        member.start()
    for member in members:
        member.join()


if __name__ == "__main__":
    signal.alarm(300)
    launch(3)
