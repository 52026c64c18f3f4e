"""FIELD
source: https://github.com/birdnet-team/birdnet/issues/73 (a worker killed mid-batch never releases the ring-buffer lock) and https://github.com/ShannonAI/service-streamer/issues/94
mechanism: the learner's watchdog kills an actor that is over its time while it holds the shared multiprocessing.Lock; a semaphore has no owner, so the learner and the other actors wait for it for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, dead_worker
blame: take (actor_ring.py)
twin: none
"""
import multiprocessing as mp
import time

import numpy as np
import torch
import torch.nn as nn

SLOTS, DIM = 256, 48


def actor(rank, ring, head, lock, beat):
    torch.set_num_threads(1)
    rng = np.random.default_rng(rank)
    view = np.frombuffer(ring, dtype=np.float32).reshape(SLOTS, DIM)
    episode = 0
    while True:
        beat[rank] = time.time()
        state = rng.standard_normal(DIM).astype(np.float32)
        for _ in range(2000):
            state = np.tanh(state * 1.01)
        with lock:
            view[head.value % SLOTS] = state
            head.value += 1
            if rank == 1 and episode == 2500:       # the buffer is re-ranked every now and then
                for _ in range(4000):
                    scores = np.linalg.svd(view, full_matrices=False)[0][:, :4]
                    view[:] = view[np.argsort(scores[:, 0])]
        episode += 1


class Learner:
    def __init__(self):
        self.lock = mp.Lock()
        self.ring = mp.RawArray("f", SLOTS * DIM)
        self.head = mp.RawValue("l", 0)
        self.beat = mp.RawArray("d", 2)
        self.actors = [self.start(r) for r in range(2)]

    def start(self, rank):
        self.beat[rank] = time.time()
        p = mp.Process(target=actor, args=(rank, self.ring, self.head, self.lock, self.beat), daemon=True)
        p.start()
        return p

    def renew(self, limit=1.5):
        for r, p in enumerate(self.actors):
            if time.time() - self.beat[r] > limit:
                print(f"actor {r} is over its time, starting it anew", flush=True)
                p.kill()
                p.join()
                self.actors[r] = self.start(r)

    def take(self, n):
        if not self.lock.acquire(timeout=2.0):
            print("ONSET", flush=True)
            self.renew()
            self.lock.acquire()
        batch = np.frombuffer(self.ring, dtype=np.float32).reshape(SLOTS, DIM)[np.random.randint(0, SLOTS, n)].copy()
        self.lock.release()
        return torch.from_numpy(batch)


def main():
    torch.set_num_threads(1)
    learner = Learner()
    policy = nn.Sequential(nn.Linear(DIM, 256), nn.Tanh(), nn.Linear(256, DIM))
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for step in range(10 ** 6):
        x = learner.take(128)
        loss = (policy(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 1000 == 0:
            print("update", step, "episodes", learner.head.value, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
