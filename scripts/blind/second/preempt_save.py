"""FIELD
source: patroni/patroni#3413 (a Python signal handler takes the lock that the interrupted frame of the same thread already holds)
mechanism: a SIGALRM handler saves the averaged weights and acquires the non-reentrant lock that the interrupted step of the same thread holds
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: write (preempt_save.py)
twin: none
"""
import copy
import signal
import tempfile
import threading
from pathlib import Path

import torch
import torch.nn as nn

torch.set_num_threads(1)
SAVE_EVERY = 9


class Averaged:
    def __init__(self, model, decay=0.995):
        self.model = model
        self.shadow = copy.deepcopy(model.state_dict())
        self.decay = decay
        self.lock = threading.Lock()

    def step(self, opt, x, y):
        with self.lock:
            loss = nn.functional.cross_entropy(self.model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            for k, v in self.model.state_dict().items():
                self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
        return loss.item()

    def write(self, path):
        with self.lock:
            torch.save(self.shadow, path)


def main():
    out = Path(tempfile.mkdtemp(prefix="run_")) / "average.pt"
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 20))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    avg = Averaged(model)

    def on_alarm(signum, frame):
        if avg.lock.locked():
            print("ONSET", flush=True)
        avg.write(out)
        print("saved", out.name, flush=True)
        signal.alarm(SAVE_EVERY)

    signal.signal(signal.SIGALRM, on_alarm)
    x_all, y_all = torch.randn(8192, 256), torch.randint(0, 20, (8192,))
    for step in range(200000):
        rows = torch.randint(0, 8192, (512,))
        loss = avg.step(opt, x_all[rows], y_all[rows])
        if step == 0:
            signal.alarm(SAVE_EVERY)
        if step % 200 == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
