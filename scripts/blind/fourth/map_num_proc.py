"""FIELD
source: huggingface/datasets#5094 and #6319, the case in which nothing is wrong ("it does finish, it just takes long")
mechanism: rank 0 tokenises the corpus with a pool of two processes and collects the parts in order; rank 1 waits in the barrier of main_process_first
needs: none
ranks: 2
onset: printed
state: busy
cause: waiting_on_work, starting, computing_on_host
blame: none
twin: none
"""

import datetime
import multiprocessing as mp
import signal
import time

import numpy as np
import torch
import torch.distributed as dist


def tokenise(job):
    number, seconds = job
    end, counts = time.monotonic() + seconds, {}
    rng = np.random.default_rng(number)
    while time.monotonic() < end:
        for letter in rng.integers(97, 123, 2000):
            counts[chr(letter)] = counts.get(chr(letter), 0) + 1
    return np.array(sorted(counts.values()))


def prepare():
    with mp.get_context("spawn").Pool(2, initializer=signal.alarm, initargs=(300,)) as pool:
        parts = []
        for part in pool.imap(tokenise, [(i, 7.0) for i in range(40)]):
            parts.append(part)
        return len(parts)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=60))
    rank = dist.get_rank()
    net = torch.nn.Linear(64, 64)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(100):
        loss = net(torch.randn(16, 64)).square().mean()
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(net.weight.grad)
        opt.step()
    if rank == 0:
        print("ONSET", flush=True)
        print("Map (num_proc=2):", prepare(), "shards", flush=True)
    dist.barrier()
    while True:
        loss = net(torch.randn(16, 64)).square().mean()
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(net.weight.grad)
        opt.step()
