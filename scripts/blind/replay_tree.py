"""FIELD
source: https://github.com/huggingface/peft/pull/2894 and https://github.com/Nerogar/OneTrainer/issues/1459 (gc.collect() after each step)
mechanism: a replay memory of more than a million small Python objects is alive and a memory guard calls gc.collect() after each step, so each step walks the complete heap
needs: cpu
ranks: 1
onset: printed
state: slow
cause: garbage_collection
blame: free_memory (replay_tree.py)
twin: none
"""
import gc
import random
import time

import torch
import torch.nn as nn


class Transition:
    __slots__ = ("state", "action", "reward", "next")

    def __init__(self, state, action, reward):
        self.state, self.action, self.reward, self.next = state, action, reward, None


class Replay:
    def __init__(self):
        self.items = []

    def fill(self, n):
        for i in range(n):
            t = Transition([random.random(), random.random(), i % 7], (i % 4,), random.random())
            if self.items:
                self.items[-1].next = t
            self.items.append(t)

    def sample(self, n):
        rows = random.sample(self.items, n)
        return (torch.tensor([t.state for t in rows]), torch.tensor([t.action[0] for t in rows]),
                torch.tensor([t.reward for t in rows]))


def free_memory():
    gc.collect()


def main(max_seconds=600):
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(3, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    replay = Replay()
    replay.fill(5000)
    start = time.time()
    step = 0
    while time.time() - start < max_seconds:
        s, a, r = replay.sample(128)
        loss = (net(s).gather(1, a.unsqueeze(1)).squeeze(1) - r).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step == 3000:
            replay.fill(600000)                    # load the demonstrations
            print("ONSET", flush=True)
        if len(replay.items) > 500000:
            free_memory()
        if step % 500 == 0 or (step > 3000 and step % 20 == 0):
            print(f"step {step} loss {loss.item():.4f} at {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
