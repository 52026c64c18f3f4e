"""FIELD
source: https://github.com/getsentry/sentry-python/issues/803 and https://github.com/Delgan/loguru/issues/712 (a destructor run by the garbage collector takes the lock that its thread holds)
mechanism: while the thread appends an event under a plain lock the garbage collector runs, and the __del__ of a collected cycle emits an event itself and waits for the same lock
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: emit (sample_cache.py)
twin: none
"""
import threading
import time

import torch
import torch.nn as nn


class Telemetry:
    def __init__(self):
        self._lock = threading.Lock()
        self._events = []
        self._totals = {}

    def emit(self, name, **fields):
        with self._lock:
            event = {"name": name, "ts": time.time(), "fields": [dict(key=k, value=v) for k, v in fields.items()]}
            self._events.append(event)
            self._totals[name] = self._totals.get(name, 0) + 1
            if len(self._events) > 2000:
                del self._events[:1000]


telemetry = Telemetry()


class Lease:
    """Keeps a cached sample alive as long as a view of it is in use."""

    def __init__(self, key, value, report):
        self.key, self.value, self.report = key, value, report
        self.view = lambda: self.value

    def __del__(self):
        if self.report:
            telemetry.emit("lease_dropped", key=self.key)


def main():
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    pool = torch.randn(2048, 128)
    for epoch in range(50):
        report = epoch >= 3                        # usage statistics are wanted once the cache is warm
        if epoch == 3:
            print("ONSET", flush=True)
        for step in range(400):
            leases = [Lease(int(k), pool[k], report) for k in torch.randint(0, 2048, (64,))]
            x = torch.stack([lease.view() for lease in leases])
            for lease in leases:
                telemetry.emit("lease_read", key=lease.key, epoch=epoch, step=step, size=lease.value.numel())
            loss = (model(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
