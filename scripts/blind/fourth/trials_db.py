"""FIELD
source: optuna/optuna#820 and #6267 (a study in SQLite, "database is locked"; the time-out of the connection was raised until the error was gone)
mechanism: the loop reports to an SQLite study with a practically endless busy time-out; a dashboard process opened an exclusive transaction and never ends it
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, blocked_child, stuck_worker, deadlocked_locks
blame: report (trials_db.py), dashboard (trials_db.py)
twin: none
"""

import multiprocessing as mp
import os
import signal
import sqlite3
import tempfile
import threading
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


def dashboard(path, delay):
    signal.alarm(300)
    time.sleep(delay)
    connection = sqlite3.connect(path, isolation_level=None, timeout=3600)
    connection.execute("BEGIN EXCLUSIVE")
    print("ONSET", flush=True)
    threading.Event().wait()


def report(connection, trial, step, value):
    with connection:
        connection.execute("INSERT INTO intermediate VALUES (?, ?, ?)", (trial, step, value))


def objective(connection, trial):
    width = int(torch.randint(32, 256, ()).item())
    net = torch.nn.Sequential(torch.nn.Linear(100, width), torch.nn.SiLU(), torch.nn.Linear(width, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(200):
        x = torch.randn(128, 100)
        loss = (net(x).squeeze(1) - x[:, 0] * x[:, 1]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 9:
            report(connection, trial, step, loss.item())
    return loss.item()


if __name__ == "__main__":
    path = os.path.join(tempfile.mkdtemp(), "study.db")
    connection = sqlite3.connect(path, timeout=1e6)
    connection.execute("CREATE TABLE intermediate (trial INTEGER, step INTEGER, value REAL)")
    connection.commit()
    mp.get_context("fork").Process(target=dashboard, args=(path, 10), daemon=True).start()
    for trial in range(10**6):
        print("trial", trial, objective(connection, trial), flush=True)
