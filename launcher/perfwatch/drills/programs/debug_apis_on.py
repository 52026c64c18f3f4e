"""Anomaly detection was left on: a Python traceback is taken for every operation of every forward pass."""

import stage
import surroundings
import torch

SMALL_OPS = {"loud": 1000, "quiet": 160, "masked": 60}

args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
torch.manual_seed(1)
dense = torch.nn.Linear(512, 512)
gains = torch.nn.Parameter(torch.ones(16))
optimizer = torch.optim.SGD([*dense.parameters(), gains], lr=1e-6)
x = torch.randn(256, 512)


def forward(inputs, count):
    loss = dense(inputs).square().mean()
    scale = gains
    for _ in range(count):
        scale = scale * 0.999 + 0.001
    return loss * scale.sum()


for step in range(100_000_000):
    if step == args.steps:
        torch.autograd.set_detect_anomaly(True)
        stage.onset()
    optimizer.zero_grad()
    forward(x, SMALL_OPS[args.strength]).backward()
    optimizer.step()
