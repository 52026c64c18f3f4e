"""Others burn every core, but at the lowest priority: they take only what this job leaves. Healthy."""

import os

import stage
import torch


def idle_work():
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if os.path.exists("/proc/self/autogroup"):
        with open("/proc/self/autogroup", "w") as group:
            group.write("19")
    while True:
        pass


args = stage.arguments(__doc__)
for _ in range(len(os.sched_getaffinity(0))):
    stage.outsider(idle_work)
torch.set_num_threads(1)
perceptron = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
optimizer = torch.optim.SGD(perceptron.parameters(), lr=1e-3)
batch = torch.randn(256, 512)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(perceptron(batch), batch).backward()
    optimizer.step()
