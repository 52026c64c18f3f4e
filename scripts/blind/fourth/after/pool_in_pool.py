"""FIELD
source: own (a task of a thread pool waits for tasks of the same pool)
mechanism: two loader threads fetch shards, and each hands its decoding to the same pool of two and waits; when both are at it at once, no thread is left to decode
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: fetch_all (pool_in_pool.py), decode_one (pool_in_pool.py), fetch_shard (pool_in_pool.py)
twin: none
"""

import concurrent.futures
import signal
import threading

import torch

signal.alarm(300)
torch.set_num_threads(1)
pool = concurrent.futures.ThreadPoolExecutor(2)
both = threading.Barrier(2)
crowded = False


def decode_one(seed):
    return torch.randn(64, 48, generator=torch.Generator().manual_seed(seed))


def fetch_shard(number):
    if crowded:
        both.wait()
    return pool.submit(decode_one, number).result()


def fetch_all(step):
    return [future.result() for future in [pool.submit(fetch_shard, 2 * step + i) for i in range(2 if crowded else 1)]]


net = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.Tanh(), torch.nn.Linear(96, 48))
opt = torch.optim.Adam(net.parameters())
for step in range(10**6):
    if step == 4000:
        print("ONSET", flush=True)
        crowded = True
    for x in fetch_all(step):
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if step % 500 == 0:
        print(step, loss.item(), flush=True)
