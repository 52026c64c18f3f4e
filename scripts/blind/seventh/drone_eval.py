"""FIELD
source: own (policies are validated in real time because the autopilot in the loop cannot be hurried)
mechanism: after each phase of training rank 0 flies six validation episodes of 25 s in real time with the policy, sleeping until
    each 50 ms tick, and rank 1 waits at the barrier; then both train on
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: none
twin: none
"""
import ctypes
import multiprocessing as mp
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm


class Autopilot:
    """Hardware in the loop: attitude as quaternion, answers when its own clock says so."""

    period = 0.05

    def __init__(self, seed):
        self.noise = torch.Generator().manual_seed(seed)

    def reset(self):
        self.tilt, self.rate, self.due = torch.randn(3, generator=self.noise) * 0.3, torch.zeros(3), time.monotonic()
        return self.state()

    def state(self):
        return torch.cat([self.tilt, self.rate, self.tilt.sin(), self.rate.tanh()])

    def exchange(self, thrust):
        self.rate = 0.95 * self.rate + self.period * (thrust - 2 * self.tilt + 0.3 * torch.randn(3, generator=self.noise))
        self.tilt = self.tilt + self.period * self.rate
        self.due += self.period
        time.sleep(max(0.0, self.due - time.monotonic()))
        return self.state(), -float(self.tilt.square().sum())


@torch.no_grad()
def fly(policy, episodes, seconds):
    policy.eval()
    scores = []
    for seed in tqdm(range(episodes), desc="flights", mininterval=5):
        craft, score = Autopilot(seed), 0.0
        state = craft.reset()
        for _ in range(round(seconds / craft.period)):
            state, reward = craft.exchange(policy(state[None])[0])
            score += reward
        scores.append(score)
    policy.train()
    return sum(scores) / len(scores)


def expert(states):
    return -1.5 * states[:, :3] - 0.8 * states[:, 3:6] + 0.2 * states[:, 6:9]


def phase(model, optimizer, seconds, generator):
    until, steps = time.monotonic() + seconds, 0
    while True:
        states = torch.randn(192, 12, generator=generator)
        loss = nn.functional.mse_loss(model(states), expert(states))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        stop = torch.tensor([float(time.monotonic() > until)])
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        if stop.item():
            return steps, loss.item()


def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(12, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3))
    model, generator = DDP(net), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for number in range(100):
        steps, loss = phase(model, optimizer, 18, generator)
        if rank == 0:
            print(f"phase {number}: {steps} steps, loss {loss:.5f}; validating", flush=True)
            if number == 0:
                print("ONSET", flush=True)
            print(f"mean score {fly(net, 6, 25):.2f}", flush=True)
        dist.barrier()


def helper(folder):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    rank_main(1, folder)


if __name__ == "__main__":
    signal.alarm(300)
    folder = tempfile.mkdtemp(prefix="drone_")
    mp.get_context("fork").Process(target=helper, args=(folder,), daemon=True).start()
    rank_main(0, folder)
