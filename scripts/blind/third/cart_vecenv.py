"""FIELD
source: https://github.com/openai/baselines/issues/640
mechanism: one environment process of a vectorised environment dies; its end of the pipe lives on in the siblings that were forked after it, so the trainer's recv never sees an end of file
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker, blocked_pipe
blame: step_wait (receives)
twin: none
"""
import multiprocessing as mp
import os
import signal

import torch

torch.set_num_threads(1)


def env_worker(remote, index):
    signal.alarm(300)
    state = torch.zeros(4)
    ticks = 0
    while True:
        action = remote.recv()
        if action is None:
            break
        ticks += 1
        state = 0.9 * state + 0.1 * torch.tanh(action) + 0.01 * torch.randn(4)
        if index == 0 and ticks == 1500:
            os._exit(17)  # the simulator's own abort
        remote.send((state.numpy(), float(-state.norm())))


class SubprocEnvs:
    def __init__(self, count):
        self.remotes, ends = zip(*[mp.Pipe() for _ in range(count)])
        self.processes = [mp.Process(target=env_worker, args=(end, i), daemon=True) for i, end in enumerate(ends)]
        for process in self.processes:
            process.start()

    def step_async(self, actions):
        for remote, action in zip(self.remotes, actions):
            remote.send(action)

    def step_wait(self):
        answers = [remote.recv() for remote in self.remotes]
        return torch.stack([torch.from_numpy(s) for s, _ in answers]), torch.tensor([r for _, r in answers])


if __name__ == "__main__":
    mp.set_start_method("fork")
    signal.alarm(300)
    envs = SubprocEnvs(3)
    actor = torch.nn.Sequential(torch.nn.Linear(4, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    states, tick = torch.zeros(3, 4), 0
    while True:
        rewards = []
        for _ in range(16):
            tick += 1
            if tick == 1500:
                print("ONSET", flush=True)
            envs.step_async(actor(states).detach())
            states, reward = envs.step_wait()
            rewards.append(reward)
        loss = (actor(states) * torch.stack(rewards).mean()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if tick % 320 == 0:
            print(f"tick {tick} reward {torch.stack(rewards).mean():.4f}", flush=True)
