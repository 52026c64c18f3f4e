"""FIELD
source: after DLR-RM/stable-baselines3#1814 and openai/baselines#640 (a worker fails, the parent is left waiting in recv)
mechanism: three environments in forked processes answer over duplex pipes whose other ends stay open; the second one raises and ends with code 1, and the trainer waits in recv for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker
blame: step (piped_envs.py), remote_env (piped_envs.py)
twin: none
"""

import multiprocessing as mp
import random
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)


def remote_env(remote, index):
    signal.alarm(300)
    rng, state, served = random.Random(index), [0.0] * 8, 0
    while True:
        command, action = remote.recv()
        if command == "step":
            for _ in range(60):
                state = [0.95 * s + 0.01 * action + 0.1 * rng.gauss(0, 1) for s in state]
            served += 1
            if index == 1 and served == 2500:
                print("ONSET", flush=True)
                raise ValueError("observation out of bounds")
            remote.send((state, -sum(map(abs, state)), served % 200 == 0))


class Envs:
    def __init__(self, count):
        pairs = [mp.Pipe() for _ in range(count)]
        self.remotes = [ours for ours, _ in pairs]
        self.work_remotes = [theirs for _, theirs in pairs]
        for index, theirs in enumerate(self.work_remotes):
            mp.get_context("fork").Process(target=remote_env, args=(theirs, index), daemon=True).start()

    def step(self, actions):
        for remote, action in zip(self.remotes, actions.tolist()):
            remote.send(("step", action))
        results = [remote.recv() for remote in self.remotes]
        obs, rewards, dones = zip(*results)
        return torch.tensor(obs), torch.tensor(rewards), dones


if __name__ == "__main__":
    envs = Envs(3)
    actor = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
    obs = torch.zeros(3, 8)
    update = 0
    while True:
        logps, rewards = [], []
        for _ in range(32):
            dist = torch.distributions.Normal(actor(obs).squeeze(-1), 1.0)
            action = dist.sample()
            logps.append(dist.log_prob(action))
            obs, reward, _ = envs.step(action)
            rewards.append(reward)
        gain = torch.stack(rewards)
        loss = -(torch.stack(logps) * (gain - gain.mean())).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        update += 1
        if update % 10 == 0:
            print("update", update, gain.mean().item(), flush=True)
