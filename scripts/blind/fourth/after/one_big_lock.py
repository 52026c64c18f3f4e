"""FIELD
source: own, after rwth-i6/returnn#1548 (one lock for the whole cache)
mechanism: three threads prepare batches under one lock of the cache, and the training thread takes the same lock to look up its batch
needs: none
ranks: 1
onset: printed
state: slow
cause: contended_lock, starved_by_transforms
blame: augment (one_big_lock.py), producer (one_big_lock.py), next_batch (one_big_lock.py)
twin: none
"""

import random
import signal
import threading
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
cache_lock = threading.Lock()
cache = {}


def augment(image):
    time.sleep(0.15)  # the codec's own process answers
    return image.flip(-1) + 0.1 * torch.randn_like(image)


def producer():
    while True:
        key = random.randrange(64)
        with cache_lock:
            cache[key] = augment(torch.randn(3, 32, 32))


def next_batch():
    with cache_lock:
        keys = random.sample(sorted(cache), 4) if len(cache) >= 4 else []
        return torch.stack([cache[key] for key in keys]) if keys else torch.randn(4, 3, 32, 32)


net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    threading.Thread(target=producer, daemon=True).start()
for step in range(10**6):
    loss = torch.nn.functional.cross_entropy(net(next_batch()), torch.randint(0, 10, (4,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 20:
        print("ONSET", flush=True)
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
