"""A run that does what it should and ends with exit code 0."""

import stage
import torch

options = stage.arguments()
torch.set_num_threads(1)
line = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(line.parameters(), lr=0.01)
for _ in range(options.steps * 50):
    x = torch.rand(4096, 1)
    sgd.zero_grad()
    (line(x) - 3 * x).square().mean().backward()
    sgd.step()
stage.onset()
print("slope", line.weight.item())
