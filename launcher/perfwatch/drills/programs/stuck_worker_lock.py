"""The workers are forked while a thread of the parent holds a lock; their copy of it is never released."""

import threading
import time

import stage
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

CACHE_LOCK = threading.Lock()


def flush_cache():
    with CACHE_LOCK:
        time.sleep(1.0)


class Rows(IterableDataset):
    def __init__(self, steps, everybody):
        self.steps, self.everybody = steps, everybody

    def cached(self, row):
        with CACHE_LOCK:
            return row

    def __iter__(self):
        me = get_worker_info().id
        for n in range(100_000):
            row = torch.ones(128) * n
            if n == self.steps * 16 and (self.everybody or me == 0):
                stage.onset()
                row = self.cached(row)
            yield row


def train(opt):
    torch.set_num_threads(1)
    flusher = threading.Thread(target=flush_cache)
    flusher.start()
    batches = iter(DataLoader(Rows(opt.steps, opt.strength == "loud"), batch_size=16, num_workers=2))
    flusher.join()
    if opt.strength == "masked":
        threading.Timer(0, watchdog).start()
    net = torch.nn.Linear(128, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-4)
    for rows in batches:
        sgd.zero_grad()
        net(rows).abs().mean().backward()
        sgd.step()
        time.sleep(0.01)


def watchdog():
    while threading.main_thread().is_alive():
        sum(range(30_000))
        print("watchdog: main thread is alive", flush=True)
        time.sleep(0.7)


train(stage.arguments())
