"""FIELD
source: own: ring of batches with POSIX semaphores called through ctypes.PyDLL "because it is faster" (kin of python/cpython#78076 and rapidsai/rapidsmpf#188, blocking native calls that keep the GIL)
mechanism: sem_wait keeps the GIL; while the producer thread is ahead it returns at once, but when the second stage's simulated crops make the producer slower than the trainer
    the ring runs dry, and sem_wait blocks with the GIL that the producer needs to post
needs: none
ranks: 1
onset: printed
state: hung
cause: held_gil,deadlocked_locks
blame: none
twin: none
"""
import ctypes
import signal
import threading
import time

import numpy as np
import torch
from torch import nn

libc = ctypes.PyDLL(None, use_errno=True)
SLOTS = 24


class Semaphore:
    def __init__(self, value):
        self.memory = ctypes.create_string_buffer(64)
        libc.sem_init(self.memory, 0, value)

    def wait(self):
        while libc.sem_wait(self.memory):
            pass

    def post(self):
        libc.sem_post(self.memory)


class Ring:
    """One producer, one consumer; slots are reused."""

    def __init__(self):
        self.images = np.zeros((SLOTS, 32, 1, 20, 20), np.float32)
        self.labels = np.zeros((SLOTS, 32), np.int64)
        self.filled = Semaphore(0)
        self.empty = threading.Semaphore(SLOTS)
        self.head = self.tail = 0

    def put(self, images, labels):
        self.empty.acquire()
        self.images[self.head], self.labels[self.head] = images, labels
        self.head = (self.head + 1) % SLOTS
        self.filled.post()

    def take(self):
        self.filled.wait()
        i = self.tail
        self.tail = (i + 1) % SLOTS
        batch = torch.from_numpy(self.images[i].copy()), torch.from_numpy(self.labels[i].copy())
        self.empty.release()
        return batch


class Producer(threading.Thread):
    def __init__(self, ring):
        super().__init__(daemon=True)
        self.ring, self.crops = ring, 0

    def run(self):
        rng = np.random.default_rng(0)
        kernels = rng.normal(size=(6, 20, 20)).astype(np.float32)
        while True:
            labels = rng.integers(0, 6, 32)
            images = kernels[labels][:, None] + rng.normal(size=(32, 1, 20, 20)).astype(np.float32)
            for _ in range(self.crops):
                time.sleep(0.012)  # the crop service
                images = np.roll(images, rng.integers(0, 2, 2), (2, 3))
            self.ring.put(images, labels)


def steps(ring):
    net = nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(24 * 64, 6))
    opt = torch.optim.SGD(net.parameters(), 0.01)
    while True:
        x, y = ring.take()
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss.item()


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    ring = Ring()
    producer = Producer(ring)
    producer.start()
    time.sleep(1)  # fill up first
    begin = time.monotonic()
    for n, loss in enumerate(steps(ring)):
        if n % 200 == 0:
            print(f"{n} {loss:.4f}", flush=True)
        if not producer.crops and time.monotonic() - begin > 20:
            producer.crops = 30
            print("stage 2: thirty crops", flush=True)
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
