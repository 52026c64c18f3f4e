"""FIELD
source: https://github.com/taskiq-python/taskiq/issues/593 and the warning in https://docs.python.org/3/library/signal.html (a lock taken in a signal handler)
mechanism: the SIGALRM handler that autosaves takes the lock which the interrupted main thread holds during its step; the lock is not reentrant and its owner is the one that waits
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: autosave (autosave.py)
twin: none
"""
import copy
import os
import signal
import tempfile
import threading
import time

import torch
import torch.nn as nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
        self.ema = copy.deepcopy(self.model)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-4)
        self.weights = threading.Lock()
        self.path = os.path.join(tempfile.mkdtemp(prefix="run_"), "autosave.pt")
        self.announced = False
        self.step_no = 0

    def update_ema(self, every):
        while True:
            time.sleep(every)
            with self.weights, torch.no_grad():
                for e, p in zip(self.ema.parameters(), self.model.parameters()):
                    e.lerp_(p, 0.01)

    def step(self):
        x = torch.randn(64, 512)
        with self.weights:
            loss = (self.model(x) - x.flip(1)).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.step_no += 1
        return loss

    def autosave(self, signum, frame):
        if not self.announced:
            self.announced = True
            print("ONSET", flush=True)
        with self.weights:
            torch.save(self.model.state_dict(), self.path)


def main():
    torch.set_num_threads(1)
    trainer = Trainer()
    threading.Thread(target=trainer.update_ema, args=(0.5,), daemon=True).start()
    signal.signal(signal.SIGALRM, trainer.autosave)
    signal.setitimer(signal.ITIMER_REAL, 9, 9)
    while trainer.step_no < 200000:
        loss = trainer.step()
        if trainer.step_no % 200 == 0:
            print("step", trainer.step_no, "loss", round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    main()
