"""FIELD
source: own, after pytorch/pytorch#132492 (a cache shared between DataLoader workers through a multiprocessing manager)
mechanism: two workers read packed events from a cache object in a manager process, which unpacks each on demand, one at a time;
    after an update of the "detector conditions" each event is unpacked through a slow Python path, and the workers and the
    trainer wait for the one manager process
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_transforms, starved_by_network, contended_lock
blame: none
twin: none
"""
import ctypes
import signal
import threading
import time
import zlib
from multiprocessing.managers import BaseManager

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

EVENTS, CELLS = 600, 32 * 32
CHANGE_AFTER = 16.0


class EventCache:
    """Lives in the manager process."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.packed = [zlib.compress(rng.poisson(0.4, CELLS).astype(np.uint8).tobytes()) for _ in range(EVENTS)]
        self.gains = rng.uniform(0.9, 1.1, CELLS)
        self.born, self.serial, self.told = time.monotonic(), threading.Lock(), False

    def calibrated(self, cells):
        """The gain of a cell depends on its neighbours' occupancy."""
        out = []
        for i, value in enumerate(cells):
            around = sum(int(cells[(i + d) % CELLS]) for d in (-33, -32, -31, -1, 1, 31, 32, 33))
            out.append(int(value) * self.gains[i] / (1 + 0.01 * around))
        return np.array(out, dtype=np.float32)

    def get(self, index):
        with self.serial:
            cells = np.frombuffer(zlib.decompress(self.packed[index]), dtype=np.uint8)
            if time.monotonic() - self.born < CHANGE_AFTER:
                return cells.astype(np.float32) * self.gains.astype(np.float32)
            if not self.told:
                self.told = True
                print("ONSET", flush=True)
            return self.calibrated(cells)


class CacheManager(BaseManager):
    pass


CacheManager.register("EventCache", EventCache)


def quiet():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Events(IterableDataset):
    def __init__(self, cache):
        self.cache = cache

    def __iter__(self):
        rng = np.random.default_rng(get_worker_info().seed % 2**32)
        while True:
            index = int(rng.integers(EVENTS))
            image = torch.from_numpy(self.cache.get(index)).view(1, 32, 32)
            yield image, index % 2


class JetTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential()
        for a, b in [(1, 24), (24, 24), (24, 48)]:
            self.net.extend([nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)])
        self.net.extend([nn.Flatten(), nn.Linear(48 * 16, 2)])

    def forward(self, images):
        return self.net(images)


def worker_start(_):
    quiet()
    torch.set_num_threads(1)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    manager = CacheManager()
    manager.start(initializer=quiet)
    loader = DataLoader(Events(manager.EventCache()), batch_size=48, num_workers=2, worker_init_fn=worker_start)
    tagger, seen, since = JetTagger(), 0, time.monotonic()
    optimizer = torch.optim.SGD(tagger.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    for step, (images, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(tagger(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(labels)
        if time.monotonic() - since > 5:
            print(f"step {step}: {seen / (time.monotonic() - since):.0f} events/s, loss {loss.item():.3f}", flush=True)
            seen, since = 0, time.monotonic()
