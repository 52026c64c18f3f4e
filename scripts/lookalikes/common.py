"""What the look-alike programs share: a small training loop, and what every drill shares (``stage``)."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "launcher/perfwatch/drills/programs"))
from stage import onset, outsider

__all__ = ["condition", "onset", "outsider", "train"]

torch.set_num_threads(1)


def condition():
    """The word on the command line: works, sleeps, outside, native, gone or cycle."""
    return sys.argv[1]


def train(steps=20, width=256):
    """Make ``steps`` healthy steps; return the model and a function that makes one more."""
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch=None):
        batch = torch.randn(512, width) if batch is None else batch
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(steps):
        step()
        time.sleep(0.02)
    return model, step
