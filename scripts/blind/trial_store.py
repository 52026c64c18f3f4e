"""FIELD
source: https://github.com/optuna/optuna/issues/820 and https://github.com/optuna/optuna/issues/6267 (SQLite study storage is locked by another process)
mechanism: a clean-up tool keeps a write transaction of the SQLite study open while it asks for a confirmation that nobody gives; the trial's commit waits in SQLite's busy handler with a timeout of a day
needs: cpu
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, blocked_child, unknown
blame: report (trial_store.py)
twin: none
"""
import os
import sqlite3
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

PRUNE = r"""
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
n = db.execute("SELECT COUNT(*) FROM intermediate WHERE value > 1.0").fetchone()[0]
db.execute("DELETE FROM intermediate WHERE value > 1.0")
print("prune: delete %d rows? [y/N]" % n, flush=True)
db.execute("COMMIT" if sys.stdin.readline().strip() == "y" else "ROLLBACK")
"""


class Study:
    def __init__(self, path):
        self.path = path
        self.db = sqlite3.connect(path, timeout=86400)
        self.db.execute("CREATE TABLE intermediate (trial INTEGER, step INTEGER, value REAL)")
        self.db.commit()

    def report(self, trial, step, value):
        with self.db:
            self.db.execute("INSERT INTO intermediate VALUES (?, ?, ?)", (trial, step, value))

    def prune(self):
        self.janitor = subprocess.Popen([sys.executable, "-c", PRUNE, self.path], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        return self.janitor.stdout.readline()


def objective(study, trial, width):
    net = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, 64))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(1200):
        x = torch.randn(128, 64)
        loss = (net(x) - x.roll(1, 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            study.report(trial, step, loss.item())
    return loss.item()


def main():
    torch.set_num_threads(1)
    study = Study(os.path.join(tempfile.mkdtemp(prefix="study_"), "study.db"))
    for trial, width in enumerate([256, 512, 512, 1024, 1024, 2048]):
        if trial == 2:
            print(study.prune().strip(), flush=True)
            print("ONSET", flush=True)
        print("trial", trial, objective(study, trial, width), flush=True)


if __name__ == "__main__":
    main()
