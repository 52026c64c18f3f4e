"""torch.profiler was left on for the whole run, with stacks and shapes: it costs more than the training."""

import stage
import torch
from torch.profiler import ProfilerActivity, profile, schedule


def small_operations(x, weights):
    for weight in weights:
        x = (x * weight + 0.01).tanh()
    return x


args = stage.arguments(__doc__)
torch.set_num_threads(1)
base = torch.nn.Linear(256, 64)
weights = torch.nn.Parameter(torch.ones(80, 64))
optimizer = torch.optim.SGD([*base.parameters(), weights], lr=1e-4)
data = torch.randn(64, 256)


def train_step():
    optimizer.zero_grad()
    small_operations(base(data), weights).square().mean().backward()
    optimizer.step()


for _ in range(args.steps):
    train_step()
stage.onset()
while True:
    cycle = schedule(wait=0, warmup=1, active=20)
    with profile(activities=[ProfilerActivity.CPU], schedule=cycle, with_stack=True, record_shapes=True) as profiler:
        for _ in range(21):
            train_step()
            profiler.step()
    profiler.key_averages().table(row_limit=5)
