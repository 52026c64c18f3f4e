"""A training program that waits for an eventfd, in a read or a poll, until a shard, a token or an index is ready."""

import ctypes
import multiprocessing
import os
import select
import subprocess
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from common import condition, onset, outsider, train

INDEXER = r"""
#include <time.h>
unsigned long cluster(int seconds) {
    unsigned long center = 1;
    for (time_t end = time(0) + seconds; time(0) < end;)
        for (int i = 0; i < 100000000; i++) center = center * 6364136223846793005UL + i;
    return center;
}
"""


class ShardDecoder(threading.Thread):
    """Packs the next shard into a file on disk and says so through an eventfd."""

    def __init__(self):
        super().__init__(name="shard-decoder", daemon=True)
        self.ready = os.eventfd(0)

    def run(self):
        end = time.monotonic() + 150
        with tempfile.TemporaryFile() as shard:
            while time.monotonic() < end:
                self.pack(shard)
        os.eventfd_write(self.ready, 1)

    def pack(self, shard):
        pixels = np.random.default_rng().integers(0, 64, 500_000, dtype=np.uint8)
        shard.seek(0)
        shard.write(zlib.compress(pixels.tobytes()))

    def take(self):
        onset()
        return os.eventfd_read(self.ready)


def train_on_shard():
    decoder = ShardDecoder()
    _, step = train()
    decoder.start()
    step()
    decoder.take()
    step()


def refresh_token(renewed, lifetime=115):
    time.sleep(lifetime)
    os.eventfd_write(renewed, 1)


def train_with_token():
    renewed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    _, step = train()
    multiprocessing.Process(target=refresh_token, args=(renewed,), daemon=True).start()
    poller = select.poll()
    poller.register(renewed, select.POLLIN)
    step()
    onset()
    for descriptor, _ in poller.poll():
        os.eventfd_read(descriptor)
    step()


def rank_documents(ranked):
    end = time.monotonic() + 155
    while time.monotonic() < end:
        np.argsort(np.random.default_rng().normal(size=300_000))
    os.eventfd_write(ranked, 1)


def train_on_ranking():
    libc = ctypes.CDLL(None)
    ranked = libc.eventfd(0, 0)
    outsider(lambda: rank_documents(ranked))
    _, step = train()

    def await_ranking():
        count = ctypes.c_uint64()
        onset()
        libc.eventfd_read(ranked, ctypes.byref(count))
        return count.value

    print("rankings", await_ranking(), step())


def build_index(built):
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "indexer.so")
        command = ["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
        subprocess.run(command, input=INDEXER, text=True, check=True)
        indexer = ctypes.PyDLL(library)
    time.sleep(1)
    indexer.cluster(160)
    os.eventfd_write(built, 1)


def train_with_index():
    built = os.eventfd(0)
    _, step = train()
    threading.Thread(target=build_index, args=(built,), daemon=True).start()
    with open(built, "rb", buffering=0) as index:
        onset()
        index.read(8)
    step()


class Prefetcher:
    def __init__(self, workers=2):
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")
        self.loaded = os.eventfd(0, os.EFD_SEMAPHORE)
        self.batches = []

    def load(self, size):
        self.batches.append(torch.randn(512, 256).view(size, 256))
        os.eventfd_write(self.loaded, 1)

    def __iter__(self):
        return self

    def __next__(self):
        os.eventfd_read(self.loaded)
        return self.batches.pop()


def train_on_prefetched():
    prefetcher = Prefetcher()
    for size in (512, 500):
        prefetcher.pool.submit(prefetcher.load, size)
    batches = iter(prefetcher)
    _, step = train()
    step(next(batches))
    onset()
    step(next(batches))


class Ring:
    """Slots in shared memory, with one eventfd that counts the free ones and one that counts the filled ones."""

    def __init__(self, slots=3):
        self.slots = torch.zeros(slots, 512, 256).share_memory_()
        self.free = os.eventfd(slots, os.EFD_SEMAPHORE)
        self.filled = os.eventfd(0, os.EFD_SEMAPHORE)

    def fill_slots(self):
        while True:
            for slot in self.slots:
                os.eventfd_read(self.free)
                slot.normal_()
                os.eventfd_write(self.filled, 1)

    def gather(self, count):
        for _ in range(count):
            os.eventfd_read(self.filled)
        return self.slots.mean(0)

    def release(self, count):
        os.eventfd_write(self.free, count)


def train_accumulating(micro_batches=4):
    ring = Ring()
    multiprocessing.Process(target=ring.fill_slots, daemon=True).start()
    _, step = train()
    onset()
    for _ in range(10):
        step(ring.gather(micro_batches))
        ring.release(micro_batches)


if __name__ == "__main__":
    {
        "works": train_on_shard,
        "sleeps": train_with_token,
        "outside": train_on_ranking,
        "native": train_with_index,
        "gone": train_on_prefetched,
        "cycle": train_accumulating,
    }[condition()]()
