"""FIELD
source: https://github.com/omnilib/aiomultiprocess/issues/98 and https://github.com/python/cpython/issues/87971 (the other side of a pipe dies in the middle of a message)
mechanism: the rollout process ends at its time budget in the middle of a large send; the learner has kept the write end of the pipe open itself, so its recv waits for the rest of the message for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: dead_worker, blocked_pipe
blame: fetch (rollout_pipe.py)
twin: none
"""
import multiprocessing as mp
import signal
import time

import numpy as np
import torch
import torch.nn as nn


def rollout(conn, size, budget):
    signal.alarm(budget)                           # a rollout that takes longer is not worth waiting for
    rng = np.random.default_rng(size)
    states = rng.standard_normal((size, 96)).astype(np.float32)
    for _ in range(10):
        states = np.tanh(states + 0.05)
    conn.send(states)
    conn.close()


class Rollouts:
    def __init__(self, budget):
        self.budget = budget
        self.reader, self.writer = mp.Pipe(duplex=False)

    def launch(self, size):
        self.proc = mp.Process(target=rollout, args=(self.writer, size, self.budget), daemon=True)
        self.proc.start()

    def fetch(self):
        states = self.reader.recv()
        self.proc.join()
        return torch.from_numpy(states)


def main():
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(96, 768), nn.Tanh(), nn.Linear(768, 96))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    rollouts = Rollouts(budget=6)
    rollouts.launch(4000)
    for it, seconds in enumerate([2, 2, 2, 10, 2, 2]):       # the fourth policy is trained to the end
        if it == 4:
            print("ONSET", flush=True)
        data = rollouts.fetch()
        rollouts.launch(4000)                      # the next one is simulated during the updates
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            x = data[torch.randint(0, len(data), (128,))]
            loss = (policy(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("iteration", it, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
