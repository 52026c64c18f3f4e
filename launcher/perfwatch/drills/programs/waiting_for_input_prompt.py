"""The output folder exists, and the script asks whether to overwrite it; the terminal is in a forgotten tmux."""

import os
import pty
import sys

import stage
import torch


def confirm(question):
    answer = input(question + " [y/N] ")
    return answer.lower().startswith("y")


def save(model, folder):
    stage.onset()
    if os.path.exists(folder) and not confirm(f"{folder} exists, overwrite?"):
        sys.exit(1)
    torch.save(model.state_dict(), os.path.join(folder, "vae.pt"))


if not sys.stdin.isatty():
    keyboard, terminal = pty.openpty()
    os.dup2(terminal, 0)
    sys.stdin = os.fdopen(0, closefd=False)
arguments = stage.arguments()
torch.set_num_threads(1)
vae = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.Sigmoid(), torch.nn.Linear(100, 784))
adadelta = torch.optim.Adadelta(vae.parameters())
for _ in range(arguments.steps):
    x = torch.rand(128, 784)
    adadelta.zero_grad()
    torch.nn.functional.mse_loss(vae(x), x).backward()
    adadelta.step()
save(vae, "/tmp")
