"""FIELD
source: own (a thread packs a shard while it holds the lock that the training thread needs next)
mechanism: a thread compresses a part of the corpus for two minutes and holds a lock of multiprocessing all the while; the training thread waits for it
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""

import lzma
import multiprocessing as mp
import os
import signal
import threading

import torch

signal.alarm(300)
torch.set_num_threads(1)
lock = mp.Lock()
packed = {}


def pack(number):
    with lock:
        compressor = lzma.LZMACompressor(preset=9)
        size = 0
        for _ in range(400):
            size += len(compressor.compress(os.urandom(200_000) + bytes(800_000)))
        packed[number] = size


net = torch.nn.Linear(128, 128)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(10**6):
    for step in range(1500):
        x = torch.randn(64, 128)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("part", number, loss.item(), flush=True)
    if number == 1:
        threading.Thread(target=pack, args=(number,), daemon=True).start()
        print("ONSET", flush=True)
        signal.sigtimedwait([signal.SIGWINCH], 0.3)
    with lock:
        packed.setdefault(number, 0)
