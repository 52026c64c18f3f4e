"""FIELD
source: own
mechanism: on-policy learning: fifty seconds of rollouts in a simulator of plain Python, whose policy is asked at each tick, then some seconds of updates, again and again
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: evaluating, cpu_training, balanced, computing_on_host
blame: none
twin: none
"""
import random
import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


class GridWorld:
    def __init__(self, seed, size=15):
        self.rng, self.size = random.Random(seed), size
        self.walls = {(self.rng.randrange(size), self.rng.randrange(size)) for _ in range(40)}
        self.reset()

    def reset(self):
        self.at, self.goal, self.ticks = (0, 0), (self.rng.randrange(self.size), self.rng.randrange(self.size)), 0

    def observe(self):
        return [self.at[0] / self.size, self.at[1] / self.size, self.goal[0] / self.size, self.goal[1] / self.size]

    def step(self, action):
        dx, dy = [(0, 1), (1, 0), (0, -1), (-1, 0)][action]
        to = (min(max(self.at[0] + dx, 0), self.size - 1), min(max(self.at[1] + dy, 0), self.size - 1))
        if to not in self.walls:
            self.at = to
        self.ticks += 1
        done = self.at == self.goal or self.ticks > 60
        reward = 1.0 if self.at == self.goal else -0.01
        if done:
            self.reset()
        return reward


policy = torch.nn.Sequential(torch.nn.Linear(4, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.Tanh(), torch.nn.Linear(128, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
worlds = [GridWorld(i) for i in range(16)]


@torch.no_grad()
def collect(seconds):
    end, seen = time.monotonic() + seconds, []
    while time.monotonic() < end:
        states = torch.tensor([world.observe() for world in worlds])
        actions = torch.distributions.Categorical(logits=policy(states)).sample()
        rewards = torch.tensor([world.step(int(a)) for world, a in zip(worlds, actions)])
        seen.append((states, actions, rewards))
    return seen[-4000:]


def update(seen):
    states, actions, rewards = (torch.cat(column) for column in zip(*seen))
    for _ in range(4):
        for rows in torch.randperm(len(states)).split(1024):
            logp = torch.distributions.Categorical(logits=policy(states[rows])).log_prob(actions[rows])
            loss = -(logp * (rewards[rows] - rewards.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


for iteration in range(100):
    if iteration == 1:
        print("ONSET", flush=True)
    print("iteration", iteration, update(collect(50 if iteration else 4)), flush=True)
