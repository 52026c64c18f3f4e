"""FIELD
source: own
mechanism: a population of four members is trained by a process pool of two, half a minute a generation; the parent waits for the results and then breeds
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: waiting_on_work, cpu_training, balanced
blame: none
twin: hogwild_barrier
"""
import concurrent.futures as futures
import multiprocessing as mp
import random
import signal
import time

import torch


def start():
    signal.alarm(300)
    torch.set_num_threads(1)


def train_member(weights, rate, seconds, seed):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    if weights is not None:
        net.load_state_dict(weights)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    end, total, count = time.monotonic() + seconds, 0.0, 0
    while time.monotonic() < end:
        x = torch.randn(256, 64)
        loss = torch.nn.functional.cross_entropy(net(x), x[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, count = total + loss.item(), count + 1
    return net.state_dict(), rate, total / count


def evolve():
    rng = random.Random(0)
    members = [(None, 10 ** rng.uniform(-3, -1)) for _ in range(4)]
    with futures.ProcessPoolExecutor(2, mp_context=mp.get_context("spawn"), initializer=start) as pool:
        for generation in range(100):
            if generation == 1:
                print("ONSET", flush=True)
            seconds = 15 if generation else 3
            tasks = [pool.submit(train_member, w, r, seconds, generation * 4 + i) for i, (w, r) in enumerate(members)]
            done = sorted((task.result() for task in tasks), key=lambda one: one[2])
            best = done[:2]
            members = [(w, r * rng.choice([0.8, 1.0, 1.25])) for w, r, _ in (best + best)]
            print(f"generation {generation} best {best[0][2]:.4f} at rate {best[0][1]:.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    evolve()
