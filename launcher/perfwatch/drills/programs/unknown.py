"""Trainer and shuffler pass turns over two eventfds; one turn gets lost, and each waits for the other one."""

import os

import stage
import torch


class Turns:
    """An eventfd in each direction."""

    def __init__(self):
        self.asked, self.answered = os.eventfd(0), os.eventfd(0)


def shuffle(turns):
    while True:
        os.eventfd_read(turns.asked)
        torch.randperm(1000)
        os.eventfd_write(turns.answered, 1)


def next_order(turns, lost):
    if not lost:
        os.eventfd_write(turns.asked, 1)
    os.eventfd_read(turns.answered)


def main(config):
    torch.set_num_threads(1)
    turns = Turns()
    if os.fork() == 0:
        shuffle(turns)
    model = torch.nn.Linear(400, 400)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(10**6):
        sgd.zero_grad()
        model(torch.randn(200, 400)).square().mean().backward()
        sgd.step()
        if step == config.steps:
            stage.onset()
        next_order(turns, lost=step == config.steps)


main(stage.arguments())
