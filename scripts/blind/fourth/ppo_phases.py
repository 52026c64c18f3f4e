"""FIELD
source: own, in the manner of PPO with a vector of environments in processes
mechanism: two simulators in child processes step a pure Python world through pipes for some 30 s, then the policy is updated for 6 s, again and again
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: any
blame: none
twin: venv_queue
"""

import math
import multiprocessing as mp
import random
import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


def world(pipe, seed):
    signal.alarm(300)
    rng = random.Random(seed)
    x = [rng.random() for _ in range(12)]
    while True:
        push = pipe.recv()
        for _ in range(400):
            x = [math.tanh(a + 0.01 * push + 0.02 * b) + 0.01 * rng.random() for a, b in zip(x, x[1:] + x[:1])]
        pipe.send((x, -sum(abs(a) for a in x)))


class Vec:
    def __init__(self, count):
        self.pipes = []
        for seed in range(count):
            ours, theirs = mp.Pipe()
            mp.get_context("fork").Process(target=world, args=(theirs, seed), daemon=True).start()
            self.pipes.append(ours)

    def step(self, actions):
        for pipe, action in zip(self.pipes, actions):
            pipe.send(float(action))
        answers = [pipe.recv() for pipe in self.pipes]
        return torch.tensor([a[0] for a in answers]), torch.tensor([a[1] for a in answers])


@torch.no_grad()
def rollout(vec, actor, obs, seconds):
    end, seen, acts, rewards = time.monotonic() + seconds, [], [], []
    while time.monotonic() < end:
        action = actor(obs).squeeze(-1) + 0.1 * torch.randn(len(obs))
        seen.append(obs)
        acts.append(action)
        obs, reward = vec.step(action)
        rewards.append(reward)
    return obs, torch.cat(seen), torch.cat(acts), torch.cat(rewards)


def update(actor, opt, obs, acts, rewards, seconds):
    advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pick = torch.randint(0, len(obs), (256,))
        logp = -(actor(obs[pick]).squeeze(-1) - acts[pick]).square() * 50
        loss = -(logp * advantage[pick]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    vec = Vec(2)
    actor = torch.nn.Sequential(torch.nn.Linear(12, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    opt = torch.optim.Adam(actor.parameters(), lr=1e-4)
    obs = torch.zeros(2, 12)
    for iteration in range(10**6):
        obs, *batch = rollout(vec, actor, obs, 8 if iteration == 0 else 30)
        update(actor, opt, *batch, seconds=6)
        print("iteration", iteration, "reward", batch[2].mean().item(), flush=True)
        if iteration == 0:
            print("ONSET", flush=True)
