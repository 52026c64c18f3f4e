"""Every step goes through all losses so far, and so takes longer than the one before."""

import stage
import surroundings
import torch

KEPT = {"loud": 512, "quiet": 160, "masked": 96}  # losses of a step

args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)


class Difficulty:
    def __init__(self):
        self.losses = []

    def rank(self, losses):
        self.losses += losses.tolist()
        ordered = sorted(self.losses, key=lambda loss: -loss)
        return sum(loss > ordered[len(ordered) // 2] for loss in ordered)


net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
adagrad = torch.optim.Adagrad(net.parameters())
difficulty = Difficulty()
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    losses = net(torch.randn(KEPT[args.strength], 64)).square().flatten()
    adagrad.zero_grad()
    losses.mean().backward()
    adagrad.step()
    difficulty.rank(losses.detach())
