"""Every step notes its loss in an SQLite file, which a report of another program has locked for good: its busy handler naps."""

import os
import sqlite3
import tempfile
import time

import stage
import torch

PATIENT_SECONDS = 10**6


def report(path, locked, go):
    database = sqlite3.connect(path, isolation_level=None)
    os.read(go, 1)
    database.execute("begin immediate")
    database.execute("create table notes (text)")
    os.write(locked, b"1")
    time.sleep(10**6)


def note(journal, step, value):
    journal.execute("insert into losses values (?, ?)", (step, value))


args = stage.arguments(__doc__)
path = os.path.join(tempfile.mkdtemp(prefix="drill-"), "losses.sqlite")
sqlite3.connect(path).execute("create table losses (step, value)").connection.commit()
told, tell = os.pipe()
wait, go = os.pipe()
stage.outsider(lambda: report(path, tell, wait))
torch.set_num_threads(1)
regressor = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
asgd = torch.optim.ASGD(regressor.parameters())
losses = sqlite3.connect(path, timeout=PATIENT_SECONDS, isolation_level=None)
for step in range(10**9):
    if step == args.steps:
        os.write(go, b"1")
        os.read(told, 1)
        stage.onset()
    points = torch.randn(128, 32)
    error = (regressor(points) - points.norm(dim=1, keepdim=True)).square().mean()
    asgd.zero_grad()
    error.backward()
    asgd.step()
    note(losses, step, error.item())
