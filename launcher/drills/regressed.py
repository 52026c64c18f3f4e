"""Halfway through, every step takes longer than before: the sequences have grown, nothing is broken."""

import stage
import surroundings
import torch

LENGTH = {"loud": 160, "quiet": 64, "masked": 45}  # 32 before

args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
rnn = torch.nn.LSTM(64, 128, batch_first=True)
optimizer = torch.optim.Adam(rnn.parameters())
for step in range(100_000_000):
    length = 32 if step < max(args.steps, 200) else LENGTH[args.strength]
    if step == max(args.steps, 200):
        stage.onset()
    optimizer.zero_grad()
    rnn(torch.randn(16, length, 64))[0].square().mean().backward()
    optimizer.step()
