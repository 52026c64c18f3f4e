"""FIELD
source: own (two reader processes with a queue each; one is killed by the kernel's OOM killer)
mechanism: two forked readers put samples into a SimpleQueue each, and the trainer takes from them in turn; one reader is ended by SIGKILL
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker
blame: batches (shard_readers.py), read_shards (shard_readers.py)
twin: none
"""

import multiprocessing as mp
import os
import signal
import threading
import time

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)


def read_shards(part, requests, samples):
    signal.alarm(300)
    rng = np.random.default_rng(part)
    while True:
        shard = requests.get()
        samples.put((shard, rng.standard_normal((32, 64)).astype("float32")))


def batches(requests, samples):
    shard = 0
    while True:
        for queue in requests:
            queue.put(shard)
            shard += 1
        for queue in samples:
            yield torch.from_numpy(queue.get()[1])


if __name__ == "__main__":
    context = mp.get_context("fork")
    requests, samples = [context.SimpleQueue() for _ in range(2)], [context.SimpleQueue() for _ in range(2)]
    readers = [context.Process(target=read_shards, args=(i, requests[i], samples[i]), daemon=True) for i in range(2)]
    for reader in readers:
        reader.start()

    def oom_killer():
        time.sleep(9)
        print("ONSET", flush=True)
        os.kill(readers[1].pid, signal.SIGKILL)

    threading.Thread(target=oom_killer, daemon=True).start()
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, x in enumerate(batches(requests, samples)):
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 500 == 0:
            print(step, loss.item(), flush=True)
