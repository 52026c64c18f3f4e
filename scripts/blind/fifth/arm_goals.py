"""FIELD
source: DLR-RM/stable-baselines3#1814 (deadlock when running model.learn on a SubprocVecEnv)
mechanism: after the curriculum of one environment shrinks its goal region to nothing, reset() of that environment samples goals and rejects them for ever; the trainer waits in recv() for its observation
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, endless_python, blocked_child
blame: _sample_goal () in workers
twin: none
"""

import logging
import multiprocessing as mp
import signal
import time

import numpy as np
import torch
from torch import nn

log = logging.getLogger("ppo")


class ReachEnv:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reach = 1.0
        self.margin = 0.2
        self.state = np.zeros(2)
        self.goal = np.zeros(2)

    def _sample_goal(self):
        while True:
            goal = self.rng.uniform(-1.5, 1.5, 2)
            distance = np.linalg.norm(goal)
            if self.margin < distance < self.reach:
                return goal

    def reset(self):
        self.state = self.rng.normal(0, 0.05, 2)
        self.goal = self._sample_goal()
        self.ticks = 0
        return self._obs()

    def _obs(self):
        return np.concatenate([self.state, self.goal, self.goal - self.state]).astype(np.float32)

    def step(self, action):
        time.sleep(0.002)  # the physics engine
        self.state = self.state + 0.1 * np.clip(action, -1, 1)
        self.ticks += 1
        distance = float(np.linalg.norm(self.goal - self.state))
        done = distance < 0.05 or self.ticks >= 40
        obs = self.reset() if done else self._obs()
        return obs, -distance, done


def env_worker(remote, parent, seed):
    signal.alarm(300)
    parent.close()
    env = ReachEnv(seed)
    while True:
        command, data = remote.recv()
        if command == "step":
            remote.send(env.step(data))
        elif command == "reset":
            remote.send(env.reset())
        elif command == "set_attr":
            remote.send(setattr(env, *data))


class VecEnv:
    def __init__(self, count):
        context = mp.get_context("fork")
        self.remotes, theirs = zip(*[context.Pipe() for _ in range(count)])
        for index, (theirs_end, ours) in enumerate(zip(theirs, self.remotes)):
            context.Process(target=env_worker, args=(theirs_end, ours, index), daemon=True).start()
            theirs_end.close()

    def reset(self):
        for remote in self.remotes:
            remote.send(("reset", None))
        return np.stack([remote.recv() for remote in self.remotes])

    def step(self, actions):
        for remote, action in zip(self.remotes, actions):
            remote.send(("step", action))
        obs, rewards, dones = zip(*[remote.recv() for remote in self.remotes])
        return np.stack(obs), np.array(rewards, np.float32), np.array(dones)

    def set_attr(self, index, name, value):
        self.remotes[index].send(("set_attr", (name, value)))
        self.remotes[index].recv()


def learn():
    signal.alarm(300)
    torch.set_num_threads(1)
    begin = time.monotonic()
    env = VecEnv(4)
    policy = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    obs, hardened = env.reset(), False
    for update in range(100000):
        logps, rewards = [], []
        for _ in range(64):
            dist = torch.distributions.Normal(policy(torch.from_numpy(obs)), 0.3)
            action = dist.sample()
            logps.append(dist.log_prob(action).sum(1))
            obs, reward, _done = env.step(action.numpy())
            rewards.append(torch.from_numpy(reward))
        reward = torch.stack(rewards)
        loss = -(torch.stack(logps) * (reward - reward.mean())).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.info("update %d loss %.4f mean reward %.3f", update, loss.item(), reward.mean())
        if not hardened and time.monotonic() - begin > 10:
            hardened = True
            log.info("env 2 solved its stage, next stage: goals closer to the base")
            env.set_attr(2, "reach", 0.15)
            print("ONSET", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    learn()
