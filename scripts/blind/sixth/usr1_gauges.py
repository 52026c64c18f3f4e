"""FIELD
source: taskiq-python/taskiq#593 and Yelp/Tron#591, a signal handler that puts into a queue.Queue, rebuilt as gauges of a trainer that are sampled on SIGUSR1
mechanism: once a dashboard is open a sidecar process asks for a gauge by SIGUSR1, reads it and asks again; when the signal arrives while the main thread is inside Queue.put of the same
    queue, the handler's put waits for the mutex that its own thread holds; the writer thread waits for it too, and the sidecar for its gauge
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: none
twin: none
"""
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

import torch
from torch import nn

SIDECAR = """
import os, signal, sys, time
pid = int(sys.argv[1])
time.sleep(20)
print("ONSET", flush=True)
while True:
    os.kill(pid, signal.SIGUSR1)
    if not sys.stdin.readline():
        break
    time.sleep(0.003)
"""

events = queue.Queue()


def on_usr1(signum, frame):
    events.put(("gauge", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def writer(path, dashboard):
    with open(path, "a") as out:
        while True:
            kind, value = events.get()
            out.write(f"{kind} {value}\n")
            if kind == "gauge":
                dashboard.write(f"{value}\n")
                dashboard.flush()


class TokenLosses:
    """Every token's loss goes to the log: the data team wants the outliers."""

    def __init__(self, sink):
        self.sink = sink

    def __call__(self, losses):
        for value in losses.tolist():
            self.sink.put(("token", value))


class CharModel(nn.Module):
    def __init__(self, vocab=64, d=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.conv = nn.Sequential(nn.Conv1d(d, d, 5), nn.ReLU(), nn.Conv1d(d, d, 5), nn.ReLU())
        self.out = nn.Linear(d, vocab)

    def forward(self, x):
        h = nn.functional.pad(self.embed(x).transpose(1, 2), (8, 0))
        return self.out(self.conv(h).transpose(1, 2))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    signal.signal(signal.SIGUSR1, on_usr1)
    with tempfile.TemporaryDirectory() as folder:
        sidecar = subprocess.Popen([sys.executable, "-c", SIDECAR, str(os.getpid())], stdin=subprocess.PIPE, text=True)
        threading.Thread(target=writer, args=(os.path.join(folder, "events.log"), sidecar.stdin), daemon=True).start()
        net = CharModel()
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        record = TokenLosses(events)
        gen = torch.Generator().manual_seed(0)
        step = 0
        while True:
            x = torch.randint(0, 64, (16, 65), generator=gen).sort(1).values
            logits = net(x[:, :-1])
            losses = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), reduction="none")
            opt.zero_grad()
            losses.mean().backward()
            opt.step()
            record(losses.detach())
            step += 1
            if step % 200 == 0:
                print(time.strftime("%X"), step, f"{losses.mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
