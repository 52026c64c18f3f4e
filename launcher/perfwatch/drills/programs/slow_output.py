"""The loop prints whole tensors, and whoever reads its output reads slowly (a log shipper, a bad line)."""

import fcntl
import os
import time

import stage
import surroundings
import torch

SLOWER = {"loud": 5, "quiet": 2.2, "masked": 1.7}  # the reader takes so many steps for what one step prints
PER_SECOND = 400
LINE = 80


def read_slowly(end):
    while os.read(end, LINE * 4):
        time.sleep(4 / PER_SECOND)


args = stage.arguments(__doc__)
reading, writing = os.pipe()
fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
stage.outsider(lambda: read_slowly(reading))
os.close(reading)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
rnn = torch.nn.RNN(128, 128, batch_first=True)
optimizer = torch.optim.SGD(rnn.parameters(), lr=1e-3)
inputs = torch.randn(32, 64, 128)


def train_step():
    outputs, _ = rnn(inputs)
    loss = outputs.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(100_000_000):
    if step == args.steps:
        os.dup2(writing, 1)
        stage.onset()
    began = time.monotonic()
    train_step()
    lines = round(PER_SECOND * SLOWER[args.strength] * (time.monotonic() - began))
    for line in range(max(1, lines) if step >= args.steps else 0):
        print(f"step {step:9d} grad[{line:3d}] ".ljust(LINE - 1, "."), flush=True)
