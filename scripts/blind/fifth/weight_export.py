"""FIELD
source: own: a thread that publishes the weights to the players keeps the parameter lock while it compresses them (seen in self-play trainers with a shared model)
mechanism: the publishing thread serialises and compresses the state dict under the lock that every optimizer step needs, again and again, with a short pause between; the steps wait for it
needs: none
ranks: 1
onset: printed
state: slow
cause: contended_lock
blame: publish ()
twin: none
"""
import io
import signal
import tempfile
import threading
import time
import zlib
from collections import deque
from pathlib import Path

import torch
from torch import nn


class BoardNet(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7 * 6 * 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.policy, self.value = nn.Linear(width, 7), nn.Linear(width, 1)

    def forward(self, boards):
        hidden = self.body(boards)
        return self.policy(hidden), torch.tanh(self.value(hidden)).squeeze(-1)


class Publisher(threading.Thread):
    """Writes the newest weights where the self-play machines pick them up."""

    def __init__(self, net, guard, folder):
        super().__init__(name="publisher", daemon=True)
        self.net, self.guard, self.folder, self.version = net, guard, folder, 0

    def publish(self):
        with self.guard:
            raw = io.BytesIO()
            torch.save(self.net.state_dict(), raw)
            packed = zlib.compress(raw.getvalue(), 9)
            target = self.folder / "weights.bin"
            target.with_suffix(".tmp").write_bytes(packed)
            target.with_suffix(".tmp").rename(target)
            self.version += 1

    def run(self):
        while True:
            self.publish()
            time.sleep(0.03)


class SelfPlayTrainer:
    def __init__(self):
        self.net = BoardNet()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-4)
        self.guard = threading.Lock()
        self.recent = deque(maxlen=100)
        self.publisher = Publisher(self.net, self.guard, Path(tempfile.mkdtemp(prefix="selfplay_")))

    def sample(self, size=64):
        boards = torch.randint(0, 2, (size, 84)).float()
        return boards, torch.softmax(torch.randn(size, 7), 1), torch.rand(size) * 2 - 1

    def step(self):
        boards, visits, outcome = self.sample()
        with self.guard:
            logits, value = self.net(boards)
            loss = -(visits * torch.log_softmax(logits, 1)).sum(1).mean() + nn.functional.mse_loss(value, outcome)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.recent.append(loss.item())

    def fit(self, steps):
        started, told = time.monotonic(), False
        self.publisher.start()
        for step in range(steps):
            self.step()
            if step % 25 == 0:
                mean = sum(self.recent) / len(self.recent)
                print(f"[selfplay] step={step} loss={mean:.4f} published={self.publisher.version}", flush=True)
            if not told and time.monotonic() - started > 10:
                told = True
                print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    SelfPlayTrainer().fit(10_000_000)
