"""Prints many lines on every step, to a reader that keeps up. Healthy."""

import os

import stage
import torch


def drain(end):
    while os.read(end, 65536):
        pass


args = stage.arguments(__doc__)
ours, theirs = os.pipe()
stage.outsider(lambda: drain(ours))
os.close(ours)
os.dup2(theirs, 1)
torch.set_num_threads(1)
student = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
optimizer = torch.optim.SGD(student.parameters(), lr=1e-3)
example = torch.randn(256, 256)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(student(example), example)
    loss.backward()
    optimizer.step()
    for name, parameter in student.named_parameters():
        print(f"step {step} {name} gradient norm {parameter.grad.norm():.6f}", flush=True)
