"""Look-alike of a profiler that was left on: torch's records the first steps only, and the trainer brackets its actions with its own."""

import time
from collections import Counter
from contextlib import contextmanager

import stage
import torch
from torch.profiler import ProfilerActivity, profile

FIRST = 5  # steps


class ActionProfiler:
    """What trainers carry about: seconds by the name of an action."""

    def __init__(self):
        self.seconds = Counter()

    @contextmanager
    def profile(self, action):
        begun = time.perf_counter()
        yield
        self.seconds[action] += time.perf_counter() - begun


class Trainer:
    def __init__(self):
        self.profiler = ActionProfiler()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512))
        self.optimizer = torch.optim.Adam(self.encoder.parameters(), lr=1e-4)

    def learn(self):
        self.optimizer.zero_grad()
        self.encoder(torch.randn(256, 512)).square().mean().backward()
        self.optimizer.step()

    def fit(self):
        with profile(activities=[ProfilerActivity.CPU]):
            for _ in range(FIRST):
                self.learn()
        for step in range(10**9):
            if step == args.steps:
                stage.onset()
            with self.profiler.profile("training_step"):
                self.learn()


args = stage.arguments(__doc__)
torch.set_num_threads(1)
Trainer().fit()
