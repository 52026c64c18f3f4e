"""A small checkpoint every few hundred steps, as it should be. Healthy."""

import stage
import surroundings
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(128, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 128))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-2, momentum=0.9)
data = torch.randn(512, 128)
with open(surroundings.scratch_folder() / "best.pt", "w+b") as best:
    for step in range(100_000_000):
        if step == args.steps:
            stage.onset()
        if step % 300 == 299:
            torch.save(network.state_dict(), best.name)
        optimizer.zero_grad()
        (network(data) - data).abs().mean().backward()
        optimizer.step()
