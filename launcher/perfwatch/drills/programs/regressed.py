"""Halfway through, every step takes longer than before: the sequences have grown, nothing is broken."""

import stage
import surroundings
import torch

LENGTH = {"loud": 160, "quiet": 80, "masked": 64}  # 32 before
BEFORE_SECONDS = 6.0  # a pace that lasts for less is how a run begins, not what it was

args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
rnn = torch.nn.LSTM(64, 128, batch_first=True)
optimizer = torch.optim.Adam(rnn.parameters())


def learn(length):
    optimizer.zero_grad()
    rnn(torch.randn(16, length, 64))[0].square().mean().backward()
    optimizer.step()


enough = max(args.steps, round(BEFORE_SECONDS / surroundings.typical_seconds(lambda: learn(32))))
for step in range(100_000_000):
    if step == enough:
        stage.onset()
    learn(32 if step < enough else LENGTH[args.strength])
