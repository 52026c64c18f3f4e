"""FIELD
source: birdnet-team/birdnet#73 (a worker killed mid-batch deadlocks the survivors: the lock of the ring buffer is never released)
mechanism: actors write transitions into a ring in shared memory under a multiprocessing.Lock; the kernel kills one of them while it holds the lock, and the learner and the other actor wait for that lock for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker, deadlocked_locks
blame: none
twin: none
"""
import csv
import math
import multiprocessing as mp
import os
import signal
import tempfile
import threading
import time
from multiprocessing import shared_memory

import numpy as np
import torch
from torch import nn

ROWS, COLS = 20_000, 8  # state 3, action 1, reward 1, next state 3


class Ring:
    def __init__(self, context, name=None):
        self.memory = shared_memory.SharedMemory(create=name is None, name=name, size=ROWS * COLS * 4)
        self.rows = np.ndarray((ROWS, COLS), dtype=np.float32, buffer=self.memory.buf)
        self.lock, self.head = context.Lock(), context.Value("q", 0, lock=False)

    def extend(self, episode, leak=None):
        with self.lock:
            for row in episode:
                if leak is not None:
                    leak.append(bytearray(1 << 16))
                    if len(leak) > 150:  # what the kernel's out-of-memory killer does in a tight container
                        print("ONSET", flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
                self.rows[self.head.value % ROWS] = row
                self.head.value += 1

    def sample(self, size, rng):
        with self.lock:
            top = min(self.head.value, ROWS)
            return torch.from_numpy(self.rows[rng.integers(0, top, size)].copy())


def observe(angle, speed):
    return math.cos(angle), math.sin(angle), speed


def actor(ring, index, leaks_after):
    signal.alarm(300)
    rng, born, leak = np.random.default_rng(index), time.monotonic(), []
    while True:
        angle, speed, episode = rng.uniform(-3, 3), rng.uniform(-1, 1), []
        for _ in range(60):
            push = float(rng.uniform(-2, 2))
            before, cost = observe(angle, speed), angle * angle + 0.1 * speed * speed + 0.001 * push * push
            speed = min(max(speed + (15 * math.sin(angle) + 3 * push) * 0.05, -8), 8)
            angle = (angle + speed * 0.05 + math.pi) % (2 * math.pi) - math.pi
            episode.append((*before, push, -cost, *observe(angle, speed)))
        ring.extend(episode, leak if time.monotonic() - born > leaks_after else None)
        time.sleep(0.02)


class Learner:
    def __init__(self, ring):
        self.ring, self.rng, self.steps = ring, np.random.default_rng(99), 0
        self.critic = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
        self.optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)

    def step(self):
        rows = self.ring.sample(256, self.rng)
        with torch.no_grad():
            future = self.critic(torch.cat([rows[:, 5:8], torch.rand(256, 1) * 4 - 2], 1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(self.critic(rows[:, :4]).squeeze(1), rows[:, 4] + 0.98 * future)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.item()

    def log_rate(self, path):
        with open(path, "w", newline="") as out:
            writer = csv.writer(out)
            while True:
                before = self.steps
                time.sleep(2)
                writer.writerow([time.time(), self.steps, (self.steps - before) / 2])
                out.flush()


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    ring = Ring(context)
    for number, limit in enumerate([10**9, 8]):
        context.Process(target=actor, args=(ring, number, limit), name=f"actor-{number}", daemon=True).start()
    while ring.head.value < 1000:
        time.sleep(0.05)
    learner = Learner(ring)
    threading.Thread(target=learner.log_rate, args=(os.path.join(tempfile.mkdtemp(prefix="ring_"), "rate.csv"),), daemon=True).start()
    while True:
        value = learner.step()
        if learner.steps % 300 == 0:
            print(f"learner {learner.steps}: td {value:.3f}, {ring.head.value} transitions", flush=True)
