"""FIELD
source: own
mechanism: after an epoch a retrieval model is evaluated for two and a half minutes: queries are embedded and ranked against a gallery, batch by batch
needs: none
ranks: 1
onset: printed
state: busy
cause: evaluating, computing_on_host
blame: none
twin: none
"""
import signal
import time

import torch
from torch import nn

signal.alarm(300)
torch.set_num_threads(1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(300, 512), nn.ReLU(), nn.Linear(512, 128))
        self.item = nn.Sequential(nn.Linear(300, 512), nn.ReLU(), nn.Linear(512, 128))


model = TwoTower()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
gallery = torch.randn(6000, 300)


def train_epoch(steps):
    model.train()
    for step in range(steps):
        x = torch.randn(128, 300)
        a = nn.functional.normalize(model.query(x), dim=1)
        b = nn.functional.normalize(model.item(x + 0.1 * torch.randn_like(x)), dim=1)
        loss = nn.functional.cross_entropy(a @ b.T / 0.07, torch.arange(128))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def evaluate(seconds):
    model.eval()
    end, hits, seen = time.monotonic() + seconds, 0, 0
    with torch.inference_mode():
        items = nn.functional.normalize(model.item(gallery), dim=1)
        while time.monotonic() < end:
            rows = torch.randint(0, len(gallery), (64,))
            found = (nn.functional.normalize(model.query(gallery[rows]), dim=1) @ items.T).topk(10, dim=1).indices
            hits += (found == rows[:, None]).any(1).sum().item()
            seen += 64
    return hits / seen


for epoch in range(100):
    train_epoch(400)
    if epoch == 0:
        print("ONSET", flush=True)
    print("recall@10", evaluate(150 if epoch == 0 else 3), flush=True)
