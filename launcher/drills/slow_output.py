"""The loop prints whole tensors, and whoever reads its output reads slowly (a log shipper, a bad line)."""

import os
import time

import stage
import surroundings
import torch

LINES = {"loud": 40, "quiet": 12, "masked": 8}  # printed in a step; the reader takes 400 a second
LINE = 80


def read_slowly(end):
    while os.read(end, LINE * 4):
        time.sleep(0.01)


args = stage.arguments(__doc__)
reading, writing = os.pipe()
stage.outsider(lambda: read_slowly(reading))
os.close(reading)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
rnn = torch.nn.RNN(128, 128, batch_first=True)
optimizer = torch.optim.SGD(rnn.parameters(), lr=1e-3)
inputs = torch.randn(16, 64, 128)
for step in range(100_000_000):
    if step == args.steps:
        os.dup2(writing, 1)
        stage.onset()
    outputs, _ = rnn(inputs)
    loss = outputs.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for line in range(LINES[args.strength] if step >= args.steps else 0):
        print(f"step {step:9d} grad[{line:3d}] ".ljust(LINE - 1, "."), flush=True)
