"""FIELD
source: pybind/pybind11#1446 and equinor/ert#3450 (native code waits, with the GIL held, for a thread that needs the GIL)
mechanism: the ring buffer's binding waits on a POSIX semaphore without releasing the GIL; once the ring is empty the Python thread that would fill it can never run
needs: cpu
ranks: 1
onset: printed
state: hung
cause: held_gil
blame: pop (ring_audio.py)
twin: none
"""
import collections
import ctypes
import threading
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
rt = ctypes.PyDLL(None)


class Ring:
    def __init__(self):
        self.items = collections.deque()
        self.count = ctypes.create_string_buffer(64)
        rt.sem_init(self.count, 0, 0)
        self.low_water = False

    def push(self, block):
        self.items.append(block)
        rt.sem_post(self.count)

    def pop(self):
        if not self.items and not self.low_water:
            self.low_water = True
            print("ONSET", flush=True)
        rt.sem_wait(self.count)
        return self.items.popleft()


def microphone(ring, rate):
    rng = np.random.default_rng(0)
    t = np.arange(2048) / 16000
    while True:
        f = rng.uniform(80, 800, size=(24, 1))
        if len(ring.items) < 24:
            ring.push((np.sin(2 * np.pi * f * t) + 0.1 * rng.standard_normal((24, 2048))).astype(np.float32))
        time.sleep(1 / rate)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv1d(1, 24, 15, stride=4, padding=7)
        self.dec = nn.ConvTranspose1d(24, 1, 16, stride=4, padding=6)

    def forward(self, x):
        return self.dec(torch.relu(self.enc(x)))


def main():
    ring = Ring()
    threading.Thread(target=microphone, args=(ring, 12), daemon=True).start()
    net = Denoiser()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    time.sleep(1.0)
    started = time.time()
    for step in range(100000):
        warm = time.time() - started < 9
        clean = torch.from_numpy(ring.pop()).unsqueeze(1)
        for _ in range(10 if warm else 1):
            noisy = clean + 0.2 * torch.randn_like(clean)
            loss = nn.functional.mse_loss(net(noisy), clean)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if warm and len(ring.items) < 12:
            time.sleep(0.2)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} backlog {len(ring.items)}", flush=True)


if __name__ == "__main__":
    main()
