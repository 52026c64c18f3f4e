"""FIELD
source: own (after many reports of "database is locked", here with a timeout of an hour)
mechanism: a thread opens a write transaction in the run registry, fails half-way and its error is kept for later, and with
    it the open connection; the trainer's next INSERT waits in SQLite's busy handler for a lock that no thread will release
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, waiting_for_file
blame: main
twin: none
"""

import contextlib
import os
import signal
import sqlite3
import tempfile
import threading
import time

import torch
from torch import nn

SCHEMA = """
create table if not exists metric (run integer, step integer, name text, value real not null);
create table if not exists board (run integer, best real not null, at real);
"""


class Leaderboard(threading.Thread):
    """Recomputes the table of the best runs from time to time."""

    def __init__(self, path, every=3.0):
        super().__init__(daemon=True, name="leaderboard")
        self.path, self.every = path, every
        self.errors = []
        self.window = 0.0

    def refresh(self):
        db = sqlite3.connect(self.path, timeout=3600, isolation_level=None)
        db.execute("begin immediate")
        db.execute("delete from board")
        (best,) = db.execute("select min(value) from metric where step < ?", (self.window,)).fetchone()
        db.execute("insert into board values (1, ?, ?)", (best, time.time()))
        db.execute("commit")
        db.close()

    def run(self):
        start = time.monotonic()
        while True:
            time.sleep(self.every)
            # the window of the last day is empty when the clock of the host jumps
            self.window = 1e9 if time.monotonic() - start < 17 else -1.0
            try:
                self.refresh()
            except sqlite3.Error as error:
                self.errors.append(error)
                print(f"leaderboard: {error}", flush=True)
                print("ONSET", flush=True)
                return


def build():
    return nn.Sequential(nn.Embedding(500, 48), nn.Flatten(), nn.Linear(48 * 12, 128), nn.Tanh(), nn.Linear(128, 500))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "registry.sqlite")
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.executescript(SCHEMA)
        board = Leaderboard(path)
        db = sqlite3.connect(path, timeout=3600)
        model = build()
        opt = torch.optim.RMSprop(model.parameters(), 1e-3)
        for step in range(10_000_000):
            ids = torch.randint(500, (64, 13))
            loss = nn.functional.cross_entropy(model(ids[:, :12]), ids[:, 12])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 10 == 0:
                with db:
                    db.execute("insert into metric values (1, ?, 'loss', ?)", (step, loss.item()))
            if step == 0:
                board.start()
            if step % 200 == 0:
                print(f"{step:6d} {loss.item():.4f}", flush=True)
        for error in board.errors:
            raise error


if __name__ == "__main__":
    main()
