"""FIELD
source: own
mechanism: looks like a hang at exit: training is over, main has returned and the interpreter joins a writer thread; that thread
    still packs a backlog of some hundred histograms, one after the other, and ends after some minutes
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""

import lzma
import os
import queue
import shutil
import signal
import tempfile
import threading
import time

import torch
from torch import nn
from torch.nn import functional as F


class HistogramWriter(threading.Thread):
    """Takes copies of weights and writes them packed; close() lets it finish what it has."""

    def __init__(self):
        super().__init__(name="histograms")
        self.folder = tempfile.mkdtemp(prefix="histograms-")
        self.todo = queue.Queue()

    def add(self, step, name, tensor):
        self.todo.put((step, name, tensor.detach().clone()))

    def close(self):
        self.todo.put(None)

    def run(self):
        written = 0
        while (item := self.todo.get()) is not None:
            step, name, values = item
            edges = torch.linspace(values.min(), values.max(), 4096)
            kind = torch.bucketize(values.flatten(), edges).to(torch.int16)
            with open(os.path.join(self.folder, f"{step}-{name}.xz"), "wb") as file:
                file.write(lzma.compress(kind.numpy().tobytes() + values.numpy().tobytes(), preset=9))
            written += 1
        shutil.rmtree(self.folder)
        print(f"{written} histograms", flush=True)


def net():
    return nn.Sequential(nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 1))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    writer = HistogramWriter()
    writer.start()
    model = net()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    end, step = time.monotonic() + 16, 0
    recorded = time.monotonic()
    while time.monotonic() < end:
        x = torch.randn(96, 320)
        loss = F.smooth_l1_loss(model(x), x[:, :40].square().sum(1, keepdim=True) / 40)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if time.monotonic() - recorded > 0.032:
            recorded = time.monotonic()
            writer.add(step, "first", model[0].weight)
        if step % 500 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    writer.close()
    print("training is over")
    print("ONSET", flush=True)


if __name__ == "__main__":
    main()
