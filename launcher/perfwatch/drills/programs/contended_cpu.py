"""Somebody else's processes burn the core that this job is pinned to."""

import os

import stage
import surroundings
import torch

NEIGHBOURS = {"loud": 4, "quiet": 1, "masked": 1}


def burn(core, nice):
    os.sched_setaffinity(0, {core})
    for path, value in (("/proc/self/autogroup", str(nice)), ("/proc/self/comm", "transcode")):
        if os.path.exists(path):
            with open(path, "w") as knob:
                knob.write(value)
    os.nice(nice)
    while True:
        pass


args = stage.arguments(__doc__)
core = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
conv = torch.nn.Sequential(torch.nn.Conv1d(16, 64, 5), torch.nn.ReLU(), torch.nn.Conv1d(64, 16, 5))
optimizer = torch.optim.SGD(conv.parameters(), lr=1e-3)
waves = torch.randn(48, 16, 256)
for step in range(100_000_000):
    if step == args.steps:
        for _ in range(NEIGHBOURS[args.strength]):
            stage.outsider(lambda: burn(core, 4 if args.strength == "masked" else 0))
        stage.onset()
    loss = conv(waves).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
