"""FIELD
source: own
mechanism: on rank 2 the training thread takes the cache lock and then the statistics lock, its flusher thread the other way round, and one day they meet; ranks 0 and 1 wait in the exchange
needs: none
ranks: 3
onset: printed
state: hung
cause: deadlocked_locks, stalled_collective
blame: rank 2, record (waits for the second lock), flush (waits for the first)
twin: none
"""
import datetime
import signal
import threading
import time

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)


class Metrics:
    def __init__(self):
        self.cache_lock, self.stats_lock = threading.Lock(), threading.Lock()
        self.cache, self.stats = {}, []
        self.slow = False
        threading.Thread(target=self.flusher, daemon=True, name="flusher").start()

    def record(self, key, value):
        with self.cache_lock:
            self.cache[key] = value
            if self.slow:
                time.sleep(1.0)
            with self.stats_lock:
                self.stats.append(value)

    def flush(self):
        with self.stats_lock:
            if self.slow:
                time.sleep(1.0)
            with self.cache_lock:
                self.cache.clear()
            self.stats.clear()

    def flusher(self):
        while not self.slow:
            time.sleep(0.1)
        self.flush()


dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
metrics = Metrics()
net = torch.nn.Sequential(torch.nn.Linear(80, 320), torch.nn.ELU(), torch.nn.Linear(320, 80))
optimizer = torch.optim.NAdam(net.parameters())
for step in range(10**6):
    x = torch.randn(160, 80)
    loss = (net(x) - x.square()).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    if rank == 2 and step == 300:
        print("ONSET", flush=True)
        metrics.slow = True
        time.sleep(0.3)
    metrics.record(step % 100, loss.item())
    if step % 50 == 0:
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
