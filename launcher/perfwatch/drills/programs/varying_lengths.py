"""Steps of very different length from the start, in no order: the median stays where it was. Healthy."""

import random

import stage
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(1)
random.seed(3)
gru = torch.nn.GRU(64, 128, batch_first=True)
optimizer = torch.optim.Adam(gru.parameters())
for step in range(100_000_000):
    if step == max(args.steps, 200):
        stage.onset()
    sentence = torch.randn(16, random.choice((16, 24, 32, 48, 96)), 64)
    optimizer.zero_grad()
    gru(sentence)[0].square().mean().backward()
    optimizer.step()
