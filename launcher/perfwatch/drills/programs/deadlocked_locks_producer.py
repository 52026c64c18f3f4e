"""A thread that reads shards ahead dies of a bad one; the trainer waits for a batch that nobody will bring."""

import queue
import threading
import time

import stage
import surroundings
import torch

cfg = stage.arguments()
torch.set_num_threads(1)


class Reader:
    def __init__(self):
        self.batches, self.seen = queue.Queue(4), queue.Queue()
        threading.Thread(target=self.read_ahead, daemon=True, name="reader").start()
        threading.Thread(target=self.count, daemon=True, name="counter").start()

    def read_ahead(self):
        for n in range(10**9):
            self.batches.put(self.decode(n))

    def decode(self, n):
        if n == cfg.steps:
            stage.onset()
            raise ValueError("shard 17: bad header")
        time.sleep(0.01)
        return torch.randn(64, 200)

    def count(self):
        while True:
            self.seen.get()


surroundings.innocent_activity(cfg.strength)
reader = Reader()
scorer = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Tanh(), torch.nn.Linear(200, 1))
optimizer = torch.optim.AdamW(scorer.parameters())
for step in range(10**9):
    batch = reader.batches.get()
    reader.seen.put(step)
    optimizer.zero_grad()
    scorer(batch).square().mean().backward()
    optimizer.step()
