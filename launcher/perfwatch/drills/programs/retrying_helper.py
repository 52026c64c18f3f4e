"""A call that mostly fails goes through a helper which tries anything again: the helper knows neither service nor library."""

import random
import time

import stage
import surroundings
import torch

FAILURES = {"loud": 3, "quiet": 2, "masked": 1}
LOST = {"loud": 4, "quiet": 1, "masked": 0.45}  # the waits of one batch, in steps


class Stale(Exception):
    pass


def persistently(action, first_delay):
    for attempt in range(10):
        try:
            return action(attempt)
        except Stale:
            time.sleep(first_delay * 2**attempt)
    raise Stale


def newest(attempt):
    if attempt < failures:
        raise Stale
    return torch.rand(64, 48) + random.random()


args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
critic = torch.nn.Sequential(torch.nn.Linear(48, 1024), torch.nn.ELU(), torch.nn.Linear(1024, 1))
rmsprop = torch.optim.RMSprop(critic.parameters())


def learn(replay):
    rmsprop.zero_grad()
    critic(replay.repeat(8, 1)).square().mean().backward()
    rmsprop.step()


failures = 0
one_step = surroundings.typical_seconds(lambda: learn(torch.rand(64, 48)))
most = FAILURES[args.strength]
for step in range(10**9):
    if step == args.steps:
        failures = most
        stage.onset()
    learn(persistently(newest, LOST[args.strength] * one_step / (2**most - 1)))
