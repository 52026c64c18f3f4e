"""FIELD
source: optuna/optuna#820 and optuna/optuna-dashboard#545 (sqlite3.OperationalError: database is locked while a dashboard has the study open)
mechanism: a dashboard process keeps a write transaction open while it renders; each insert of the trainer fails after its busy timeout and is tried again and again
needs: cpu
ranks: 1
onset: printed
state: slow
cause: retrying, contended_lock
blame: record (sweep_db.py)
twin: none
"""
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn

torch.set_num_threads(1)

DASHBOARD = r"""
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
db.execute("create table if not exists views (at real, mean real)")
end = time.time() + 700
while time.time() < end:
    db.execute("begin immediate")
    db.execute("insert into views select ?, avg(value) from metrics", (time.time(),))
    until = time.time() + 2.6
    while time.time() < until:
        db.execute("select step, avg(value) from metrics group by step % 50").fetchall()
        time.sleep(0.05)
    db.execute("commit")
    time.sleep(0.4)
"""


class TrialStore:
    def __init__(self, path):
        self.path = path
        self.db = sqlite3.connect(path, timeout=0.15, isolation_level=None)
        self.db.execute("create table metrics (step integer, name text, value real)")
        self.failures = 0

    def record(self, step, name, value):
        for attempt in range(200):
            try:
                self.db.execute("insert into metrics values (?, ?, ?)", (step, name, value))
                return
            except sqlite3.OperationalError:
                self.failures += 1
                time.sleep(0.1)
        raise RuntimeError("metrics database not available")


def main():
    path = str(Path(tempfile.mkdtemp(prefix="sweep_")) / "trials.db")
    store = TrialStore(path)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    started, dashboard = time.time(), None
    step = 0
    while time.time() - started < 600:
        for _ in range(10):
            x = torch.randn(256, 64)
            loss = nn.functional.mse_loss(model(x), x.pow(2).mean(1, keepdim=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        store.record(step, "loss", loss.item())
        if step % 200 == 0 or dashboard:
            print(f"step {step} loss {loss.item():.4f} retries {store.failures}", flush=True)
        if dashboard is None and time.time() - started > 9:
            dashboard = subprocess.Popen([sys.executable, "-c", DASHBOARD, path])
            print("ONSET", flush=True)
    dashboard.terminate()


if __name__ == "__main__":
    main()
