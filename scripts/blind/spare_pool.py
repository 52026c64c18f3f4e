"""FIELD
source: https://github.com/python/cpython/issues/96062 seen from the harmless side: worker processes of a pool idle on its queue lock; the setting is own
mechanism: after the pre-processing the pool stays open with idle workers, one helper process has ended and is not yet reaped, a logger thread waits on its queue, and the training goes on at full speed
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import logging
import logging.handlers
import multiprocessing as mp
import queue
import subprocess
import sys
import time

import numpy as np
import torch
import torch.nn as nn

log = logging.getLogger("spare_pool")


def normalise(seed):
    torch.set_num_threads(1)
    x = np.random.default_rng(seed).standard_normal((1000, 3, 16, 16)).astype(np.float32)
    return (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)


def setup_logging():
    q = queue.Queue()
    listener = logging.handlers.QueueListener(q, logging.StreamHandler(sys.stdout))
    log.addHandler(logging.handlers.QueueHandler(q))
    log.setLevel(logging.INFO)
    listener.start()
    return listener


def main(max_seconds=660):
    torch.set_num_threads(1)
    listener = setup_logging()
    start = time.time()
    model = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(),
                          nn.Flatten(), nn.Linear(48 * 256, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with mp.Pool(2) as pool:                       # kept for the augmentations of the second half
        images = torch.from_numpy(np.concatenate(pool.map(normalise, range(4))))
        step, version = 0, None
        while time.time() - start < max_seconds:
            rows = torch.randint(0, len(images), (256,))
            loss = nn.functional.cross_entropy(model(images[rows]), rows % 10)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if version is None and time.time() - start > 9:
                version = subprocess.Popen([sys.executable, "-c", "import sys; print(sys.version.split()[0])"])
                print("ONSET", flush=True)
            if step % 100 == 0:
                log.info("step %d loss %.3f at %.0f s", step, loss.item(), time.time() - start)
    version.wait()
    listener.stop()


if __name__ == "__main__":
    main()
