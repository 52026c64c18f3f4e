"""OMP threads far beyond the cores that this process may use: most of the time goes to waiting for each other."""

import os

import stage
import surroundings
import torch

TIMES = {"loud": 32, "quiet": 8, "masked": 4}

args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
layers = [torch.nn.Linear(256, 256) for _ in range(6)]
mlp = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(mlp.parameters(), lr=1e-3)
inputs = torch.randn(512, 256)
step = 0
while True:
    if step == args.steps:
        stage.onset()
        torch.set_num_threads(TIMES[args.strength] * len(os.sched_getaffinity(0)))
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(mlp(inputs), inputs)
    loss.backward()
    optimizer.step()
    step += 1
