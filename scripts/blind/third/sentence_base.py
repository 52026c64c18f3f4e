"""FIELD
source: own
mechanism: a SQLite table with an index over sentences is built from generated text before training, in transactions of many rows, for two minutes and a half
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host, starting
blame: none
twin: trial_table
"""
import os
import random
import signal
import sqlite3
import tempfile
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


class SentenceBase:
    def __init__(self, path):
        self.base = sqlite3.connect(path)
        self.base.execute("CREATE TABLE sentence (id INTEGER PRIMARY KEY, words TEXT, length INTEGER)")
        self.base.execute("CREATE INDEX by_length ON sentence (length, words)")

    def ingest(self, seconds):
        rng, end, count = random.Random(3), time.monotonic() + seconds, 0
        vocabulary = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 8))) for _ in range(3000)]
        while time.monotonic() < end:
            rows = []
            for _ in range(4000):
                length = rng.randint(4, 20)
                rows.append((" ".join(rng.choices(vocabulary, k=length)), length))
            with self.base:
                self.base.executemany("INSERT INTO sentence (words, length) VALUES (?, ?)", rows)
                count += len(rows)
                if count % 400_000 == 0:
                    self.base.execute("DELETE FROM sentence WHERE id % 2")
        return count

    def batch(self, size):
        rows = self.base.execute("SELECT length FROM sentence WHERE length BETWEEN 8 AND 12 LIMIT ?", (size,)).fetchall()
        return torch.tensor([[float(n)] for (n,) in rows])


with tempfile.TemporaryDirectory() as folder:
    base = SentenceBase(os.path.join(folder, "sentences.db"))
    print("ONSET", flush=True)
    print("rows", base.ingest(150), flush=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        loss = (model(base.batch(64)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
