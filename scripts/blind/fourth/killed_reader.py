"""FIELD
source: bpo-22393 as in yumorishita/LiCSBAS2#164 and natcap/taskgraph#116 (a worker of a pool is killed by the OOM killer; here while it holds the lock of the task queue)
mechanism: a worker of a multiprocessing pool is killed while it waits for its next task, with the lock of the queue; the pool starts a new one, all of them wait for that lock, and Pool.map does not return
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker, stuck_worker, deadlocked_locks
blame: augment_all (killed_reader.py)
twin: none
"""

import multiprocessing as mp
import os
import signal
import time

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)


def augment(seed):
    rng = np.random.default_rng(seed)
    image = rng.standard_normal((3, 64, 64)).astype("float32")
    return np.flip(image, axis=int(rng.integers(1, 3))).copy()


def augment_all(pool, epoch):
    return torch.from_numpy(np.stack(pool.map(augment, range(epoch * 64, epoch * 64 + 64), chunksize=8)))


def holder_of_queue(pool):
    """The worker that sleeps in the pipe's read; the others sleep in the semaphore."""
    for process in pool._pool:
        with open(f"/proc/{process.pid}/wchan") as file:
            if "pipe" in file.read():
                return process.pid
    return pool._pool[0].pid


if __name__ == "__main__":
    pool = mp.get_context("fork").Pool(3, initializer=signal.alarm, initargs=(300,))
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(10**6):
        images = augment_all(pool, epoch)
        for batch in images.split(16):
            loss = torch.nn.functional.cross_entropy(net(batch), torch.randint(0, 10, (len(batch),)))
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("epoch", epoch, loss.item(), flush=True)
        if epoch == 60:
            time.sleep(0.3)
            for _ in range(3):
                os.kill(holder_of_queue(pool), signal.SIGKILL)
            time.sleep(0.5)
            print("ONSET", flush=True)
