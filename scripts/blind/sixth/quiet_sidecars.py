"""FIELD
source: own
mechanism: looks like a hang from the outside: the program stops printing, a child of it is a zombie, another one reads an idle
    pipe, a thread waits for a queue for ever and another one for a lock that is never free; the training goes on at full speed
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""

import os
import queue
import signal
import threading
import time

import torch
from torch import nn


def zombie():
    """A one-time helper that is never waited for."""
    if os.fork() == 0:
        os._exit(3)


def idle_reader():
    """A child for hot reloads of the settings, which nobody sends."""
    out, into = os.pipe()
    if os.fork() == 0:
        signal.alarm(300)
        os.close(into)
        os.read(out, 1)
        os._exit(0)
    os.close(out)
    return into


def mailbox():
    box = queue.Queue()

    def deliver():
        while (mail := box.get()) is not None:
            print("mail:", mail, flush=True)

    threading.Thread(target=deliver, daemon=True, name="mail").start()
    return box


def plotter():
    """The window of the plots is not open here, so its lock is never given back."""
    lock = threading.Lock()
    lock.acquire()

    def draw():
        with lock:
            raise RuntimeError("no display")

    threading.Thread(target=draw, daemon=True, name="plots").start()
    return lock


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(torch.relu(x))))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    kept = [idle_reader(), mailbox(), plotter()]
    net = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), Residual(24), Residual(24), nn.Flatten(), nn.Linear(24 * 256, 10))
    opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, nesterov=True)
    start, quiet = time.monotonic(), False
    for step in range(10_000_000):
        x, y = torch.randn(24, 3, 32, 32), torch.randint(10, (24,))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not quiet and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
            if time.monotonic() - start > 15:
                quiet = True
                zombie()
                print("no more output from here on")
                print("ONSET", flush=True)
    kept.clear()


if __name__ == "__main__":
    main()
