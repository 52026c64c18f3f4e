"""A full checkpoint with fsync every few steps: the steps themselves are as fast as ever."""

import os
import time

import stage
import surroundings
import torch

EVERY = 25
RATIO = {"loud": 4.0, "quiet": 1.0, "masked": 0.45}  # time in checkpoints against time in steps


def save_checkpoint(state, folder, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with open(os.path.join(folder, "last.pt"), "wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())


args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
optimizer = torch.optim.Adam(model.parameters())
ema = torch.randn(2 << 20)
x = torch.randn(256, 256)


def train_step():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()


folder = surroundings.scratch_folder()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema}
for _ in range(args.steps):
    train_step()
stage.onset()
while True:
    began = time.monotonic()
    for _ in range(EVERY):
        train_step()
    save_checkpoint(state, folder, RATIO[args.strength] * (time.monotonic() - began))
