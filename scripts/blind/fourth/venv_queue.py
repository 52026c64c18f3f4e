"""FIELD
source: RLinf/RLinf#1384 (an environment process dies outside its try block; obs_queue.get() has no timeout)
mechanism: two simulator processes answer over queues; one of them is ended by a native abort in the simulator, and the trainer waits in Queue.get() for its observation for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker
blame: step_wait (venv_queue.py), collect (venv_queue.py), simulator (venv_queue.py)
twin: none
"""

import multiprocessing as mp
import os
import signal

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)


def simulator(index, actions, observations):
    signal.alarm(300)
    rng = np.random.default_rng(index)
    state = rng.standard_normal(16)
    ticks = 0
    while True:
        action = actions.get()
        if action is None:
            return
        for _ in range(40):
            state = np.tanh(state + 0.01 * action + 0.05 * rng.standard_normal(16))
        ticks += 1
        if index == 1 and ticks == 400:
            print("ONSET", flush=True)
            os.abort()
        observations.put((state.astype("float32"), float(-np.abs(state).sum())))


class QueueVecEnv:
    def __init__(self, count):
        context = mp.get_context("fork")
        self.actions = [context.Queue() for _ in range(count)]
        self.observations = [context.Queue() for _ in range(count)]
        self.processes = [
            context.Process(target=simulator, args=(i, self.actions[i], self.observations[i]), daemon=True)
            for i in range(count)
        ]
        for process in self.processes:
            process.start()

    def step_async(self, actions):
        for queue, action in zip(self.actions, actions):
            queue.put(float(action))

    def step_wait(self):
        results = [queue.get() for queue in self.observations]
        states, rewards = zip(*results)
        return torch.from_numpy(np.stack(states)), torch.tensor(rewards)


def collect(env, policy, obs, horizon=50):
    logps, rewards = [], []
    for _ in range(horizon):
        dist = torch.distributions.Normal(policy(obs).squeeze(-1), 1.0)
        action = dist.sample()
        logps.append(dist.log_prob(action))
        env.step_async(action)
        obs, reward = env.step_wait()
        rewards.append(reward)
    return obs, torch.stack(logps), torch.stack(rewards)


if __name__ == "__main__":
    env = QueueVecEnv(2)
    policy = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    obs = torch.zeros(2, 16)
    for update in range(10**6):
        obs, logps, rewards = collect(env, policy, obs)
        returns = rewards.flip(0).cumsum(0).flip(0)
        loss = -(logps * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("update", update, "return", rewards.sum().item(), flush=True)
