"""FIELD
source: optuna/optuna#820 (database is locked; the timeout was raised, as advised there)
mechanism: metrics go into SQLite with a timeout of a day; an exporter process reads and prunes rows in an exclusive
    transaction and asks the trainer over a pipe for the best step before it commits; the trainer answers between
    steps, but it is in an INSERT that waits for the database
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, deadlocked_locks, blocked_child, unknown
blame: any
twin: none
"""
import contextlib
import pathlib
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn as nn

SCHEMA = "CREATE TABLE IF NOT EXISTS metric (step INTEGER, name TEXT, value REAL, at REAL)"


def connect(path):
    return sqlite3.connect(path, timeout=86_400, isolation_level=None)


@contextlib.contextmanager
def exclusive(db):
    db.execute("BEGIN EXCLUSIVE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def export(path):
    """The exporter: prunes what is older than the best step, once there is enough to prune."""
    db = connect(path)
    while True:
        time.sleep(1.5)
        (rows,) = db.execute("SELECT count(*) FROM metric").fetchone()
        if rows < 900:
            continue
        with exclusive(db):
            print("best?", flush=True)
            best = int(sys.stdin.readline())
            db.execute("DELETE FROM metric WHERE step < ?", (best,))


class Charges(nn.Module):
    """A small message-passing net over a dense graph of atoms."""

    def __init__(self, kinds=8, width=48, rounds=3):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.pair = nn.ModuleList(nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU()) for _ in range(rounds))
        self.charge = nn.Linear(width, 1)

    def forward(self, kinds, positions):
        h, distance = self.embed(kinds), torch.cdist(positions, positions)[..., None]
        n = kinds.shape[1]
        for layer in self.pair:
            left, right = h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1)
            h = h + layer(torch.cat([left, right, distance], -1)).mean(2)
        return self.charge(h).squeeze(-1)


class Tracker:
    def __init__(self, path):
        self.db = connect(path)
        self.db.execute("PRAGMA synchronous=OFF")
        self.db.execute(SCHEMA)
        command = [sys.executable, __file__, "export", str(path)]
        self.exporter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        import threading

        self.asked = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for _ in self.exporter.stdout:
            print("ONSET", flush=True)
            self.asked.set()

    def log(self, step, **values):
        for name, value in values.items():
            self.db.execute("INSERT INTO metric VALUES (?, ?, ?, ?)", (step, name, value, time.time()))

    def serve(self, best):
        if self.asked.is_set():
            self.asked.clear()
            self.exporter.stdin.write(f"{best}\n")
            self.exporter.stdin.flush()


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="runs_") as folder:
        tracker = Tracker(pathlib.Path(folder) / "metrics.db")
        net = Charges()
        optimizer = torch.optim.Adam(net.parameters(), 2e-3)
        best, best_step = float("inf"), 0
        for step in range(1_000_000):
            kinds, positions = torch.randint(8, (6, 20)), torch.randn(6, 20, 3)
            target = (kinds - 3.5) / 4 + 0.2 * torch.randn(6, 20)
            loss = nn.functional.smooth_l1_loss(net(kinds, positions), target - target.mean(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            if loss.item() < best:
                best, best_step = loss.item(), step
            time.sleep(0.025)
            tracker.log(step, loss=loss.item(), norm=norm.item(), best=best)
            if step % 50 == 49:
                tracker.serve(best_step)
                print(f"step {step + 1} loss {loss.item():.4f} best {best:.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    export(sys.argv[2]) if sys.argv[1:2] == ["export"] else main()
