"""FIELD
source: https://github.com/pytorch/pytorch/pull/1140 and https://github.com/bshoshany/thread-pool/pull/108 (a notification sent while nobody waits is lost); python/cpython issue 74912
mechanism: the loader thread notifies that the epoch is prepared while the consumer is still evaluating; the consumer then waits on the condition without looking at the state, and no second notification comes
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: begin_epoch (epoch_shuffle.py)
twin: none
"""
import queue
import threading

import torch
import torch.nn as nn


class EpochLoader:
    def __init__(self, data, batch):
        self.data, self.batch = data, batch
        self.cond = threading.Condition()
        self.wanted = threading.Semaphore(0)
        self.batches = queue.Queue(4)
        threading.Thread(target=self._produce, daemon=True, name="epoch-loader").start()

    def _produce(self):
        while True:
            self.wanted.acquire()
            # sort by length inside of shuffled windows, as usual for padded text
            order = torch.randperm(len(self.data))
            for _ in range(150):
                order = torch.cat([w[self.data[w].norm(dim=1).argsort()] for w in order.split(2000)])
            with self.cond:
                self.cond.notify_all()
            for rows in order.split(self.batch):
                self.batches.put(self.data[rows])
            self.batches.put(None)

    def prepare(self):
        self.wanted.release()

    def begin_epoch(self):
        with self.cond:
            self.cond.wait()
        return iter(self.batches.get, None)


def evaluate(model, data):
    with torch.no_grad():
        return sum((model(x) - x).square().mean().item() for x in data.split(64)) / len(data)


def main():
    torch.set_num_threads(1)
    data = torch.randn(8000, 128)
    model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 128))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = EpochLoader(data, 32)
    loader.prepare()
    for epoch in range(12):
        if epoch == 3:
            print("ONSET", flush=True)
        for x in loader.begin_epoch():
            loss = (model(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        loader.prepare()                           # the next epoch is shuffled meanwhile
        val = evaluate(model, data.repeat(16, 1)) if epoch % 3 == 2 else None
        print("epoch", epoch, "loss", loss.item(), "val", val, flush=True)


if __name__ == "__main__":
    main()
