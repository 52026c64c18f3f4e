"""A forgotten ``breakpoint()`` for bad losses: the run sits at the debugger's prompt of a terminal that nobody looks
at.
"""

import os
import pty
import threading
import time

import stage
import torch


def need_a_terminal():
    if not os.isatty(0):
        _, terminal = pty.openpty()  # nobody ever types at the other end
        for descriptor in (0, 1, 2):
            os.dup2(terminal, descriptor)


def check(loss, step, limit):
    if step == limit:
        stage.onset()
        breakpoint()
    return loss


def fit(net, limit):
    adam = torch.optim.Adam(net.parameters())
    for step in range(10**6):
        loss = check(net(torch.randn(64, 1, 28, 28)).abs().mean(), step, limit)
        adam.zero_grad()
        loss.backward()
        adam.step()


def autosave():
    while True:
        with open(os.devnull, "w") as sink:
            print("autosaved", file=sink)
        time.sleep(0.5)


opts = stage.arguments()
torch.set_num_threads(1)
need_a_terminal()
if opts.strength == "masked":
    threading.Thread(target=autosave, daemon=True).start()
fit(
    torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(5408, 10)),
    opts.steps,
)
