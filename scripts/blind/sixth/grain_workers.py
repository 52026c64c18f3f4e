"""FIELD
source: ultralytics/ultralytics#26085, DataDog/dd-trace-py#18900 (a lock that another thread holds at the fork stays locked in the child)
mechanism: a reporter thread packs the input statistics under a lock at the end of an epoch; the loader forks its workers for
    the next epoch meanwhile; in the workers the lock is held by a thread that does not exist there
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks
blame: worker
twin: none
"""

import lzma
import pickle
import random
import signal
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class InputStats:
    """Counts what the samples look like; a thread reports it once there is enough."""

    def __init__(self, enough):
        self.lock = threading.Lock()
        self.seen = []
        self.enough = enough
        self.wake = threading.Event()
        threading.Thread(target=self._report, daemon=True, name="input-stats").start()

    def observe(self, value):
        with self.lock:
            self.seen.append(value)

    def epoch_end(self, values):
        for value in values:
            self.observe(value)
        self.wake.set()

    def _report(self):
        while self.wake.wait():
            self.wake.clear()
            if len(self.seen) < self.enough:
                continue
            with self.lock:
                until = time.monotonic() + 3
                packed = b""
                while time.monotonic() < until:
                    packed = lzma.compress(pickle.dumps(self.seen) * 20, preset=6)
                self.seen.clear()
            print(f"statistics: {len(packed)} bytes", flush=True)


class Grains(Dataset):
    def __init__(self, stats, count=640):
        self.stats, self.count = stats, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        picture = torch.rand(1, 28, 28, generator=generator)
        kind = index % 5
        picture[:, kind * 4 : kind * 4 + 6] += 0.4
        self.stats.observe(picture.mean().item())
        return picture, kind


def accuracy(model, held_out):
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in held_out]
    model.train()
    return sum(right) / len(right)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    stats = InputStats(enough=6 * 640)
    grains = Grains(stats)
    loader = DataLoader(grains, 32, shuffle=True, num_workers=2, multiprocessing_context="fork",
                        worker_init_fn=lambda _: signal.alarm(300))
    held_out = [(torch.rand(64, 1, 28, 28), torch.randint(5, (64,))) for _ in range(12)]
    model = nn.Sequential(nn.Conv2d(1, 24, 5, 2), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU(), nn.Flatten(),
                          nn.LazyLinear(5))
    model(torch.rand(1, 1, 28, 28))
    opt = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    for epoch in range(10_000):
        means = []
        for _ in range(3):
            for x, y in held_out:  # the old set, from memory
                loss = nn.functional.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
        for x, y in loader:
            for _ in range(8):  # augmented views
                loss = nn.functional.cross_entropy(model(x + 0.05 * torch.randn_like(x)), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            means += x.mean((1, 2, 3)).tolist()
        random.shuffle(means)
        stats.epoch_end(means)
        print(f"epoch {epoch} loss {loss.item():.3f} accuracy {accuracy(model, held_out):.2f}", flush=True)
        if len(stats.seen) >= stats.enough:
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
