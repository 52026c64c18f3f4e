"""FIELD
source: https://github.com/optuna/optuna/issues/820
mechanism: trials of a study report into one SQLite file; a dashboard process opened a write transaction and sits on it, and the trial waits in sqlite's busy handler, whose timeout somebody set to an hour
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, blocked_storage, deadlocked_locks, endless_python, unknown
blame: tell (commits)
twin: none
"""
import multiprocessing as mp
import os
import signal
import sqlite3
import tempfile
import time

import torch

torch.set_num_threads(1)


def dashboard(path, go, taken):
    signal.alarm(300)
    go.wait()
    base = sqlite3.connect(path, timeout=20, isolation_level=None)
    base.execute("BEGIN EXCLUSIVE")
    base.execute("UPDATE trials SET seen = 1")
    taken.set()
    time.sleep(290)


class Study:
    def __init__(self, path):
        self.base = sqlite3.connect(path, timeout=3600)
        self.base.execute("CREATE TABLE trials (number INTEGER, value REAL, seen INTEGER)")
        self.base.commit()

    def tell(self, number, value):
        self.base.execute("INSERT INTO trials VALUES (?, ?, 0)", (number, value))
        self.base.commit()


def objective(width):
    net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(60):
        x = torch.randn(256, 64)
        loss = (net(x).squeeze(1) - x[:, 0]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    signal.alarm(300)
    path = os.path.join(tempfile.mkdtemp(), "study.db")
    study, go, taken = Study(path), mp.Event(), mp.Event()
    mp.Process(target=dashboard, args=(path, go, taken), daemon=True).start()
    for number in range(10**6):
        value = objective(64 + number % 7 * 64)
        if number == 40:
            go.set()
            taken.wait()
            print("ONSET", flush=True)
        study.tell(number, value)
        print("trial", number, value, flush=True)
