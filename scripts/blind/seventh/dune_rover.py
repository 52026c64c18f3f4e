"""FIELD
source: own; the wall-clock budget of each rank is its own affair (a common way to end a robot's session)
mechanism: three ranks learn at a fixed rate from their rovers and average gradients; each measures its budget by its own clock,
    rank 1 reaches the end first and broadcasts the final weights, while ranks 0 and 2 are in the all-reduce of the next tick
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 1
twin: none
"""
import ctypes
import multiprocessing as mp
import os
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

HERTZ = 12.0


class Terrain:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.height = torch.randn(64, generator=self.generator).cumsum(0)
        self.at = 0

    def scan(self):
        self.at = (self.at + 1) % 48
        view = self.height[self.at : self.at + 16]
        batch = view + 0.1 * torch.randn(96, 16, generator=self.generator)
        return batch, batch[:, 8:].mean(1, keepdim=True) - batch[:, :8].mean(1, keepdim=True)


class Pace:
    """Sleeps until the next tick; a late tick is not made up."""

    def __init__(self, hertz):
        self.period, self.due = 1 / hertz, time.monotonic()

    def __iter__(self):
        tick = 0
        while True:
            yield tick
            tick += 1
            self.due = max(self.due + self.period, time.monotonic())
            time.sleep(max(0.0, self.due - time.monotonic()))


def average(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for p in model.parameters():
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


def finish(model, rank):
    everything = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.broadcast(everything, src=1)
    if rank == 0:
        torch.save(everything, os.path.join(tempfile.mkdtemp(prefix="rover_"), "final.pt"))


def rover(rank, meeting, budget):
    signal.alarm(300)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=3)
    model = nn.Sequential(nn.Linear(16, 200), nn.ELU(), nn.Linear(200, 200), nn.ELU(), nn.Linear(200, 1))
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    terrain = Terrain(rank)
    dist.barrier()
    born = time.monotonic()
    for tick in Pace(HERTZ):
        scan, slope = terrain.scan()
        loss = nn.functional.mse_loss(model(scan), slope)
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        if rank == 0 and tick % 60 == 0:
            print(f"tick {tick}, loss {loss.item():.4f}", flush=True)
        if time.monotonic() - born > budget:
            break
    print(f"rover {rank}: the session is over after {tick} ticks", flush=True)
    if rank == 1:
        print("ONSET", flush=True)
    finish(model, rank)
    dist.barrier()


if __name__ == "__main__":
    signal.alarm(300)
    meeting = "file://" + tempfile.mktemp(prefix="rover_meeting_")
    ranks = [mp.get_context("fork").Process(target=rover, args=(r, meeting, 20.0 - 1.5 * (r == 1)), daemon=True) for r in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
