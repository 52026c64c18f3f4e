"""FIELD
source: own: federated rounds with a report that takes bootstrap confidence intervals on the coordinator (kin of pytorch/pytorch#54059, one rank validates while the others wait)
mechanism: after round 40 rank 0 evaluates the global model on tens of thousands of bootstrap resamples, several minutes, and the two clients wait in recv for the next weights; nothing is printed meanwhile
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: busy
cause: evaluating,waiting_on_work,computing_on_host
blame: none
twin: none
"""
import os
import signal
import socket
import time
from datetime import timedelta

import numpy as np
import torch
import torch._dynamo  # the optimizers load it; once, before the ranks are forked
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS_BEFORE_REPORT, RESAMPLES = 40, 50_000


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv1d(3, 32, 7, 2), nn.ReLU(), nn.Conv1d(32, 32, 7, 2), nn.ReLU(),
                         nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))


def gait(n, site, gen):
    """Four gaits of three axes; each site's sensors are tuned a little differently."""
    y = torch.randint(0, 4, (n,), generator=gen)
    t = torch.linspace(0, 6, 128)
    x = torch.sin((1 + y[:, None, None]) * t * (1 + 0.05 * site) + torch.rand(n, 3, 1, generator=gen) * 6)
    return x + 0.4 * torch.randn(n, 3, 128, generator=gen), y


def coordinator(clients):
    net = network()
    flat = parameters_to_vector(net.parameters()).detach()
    gen = torch.Generator().manual_seed(0)
    x, y = gait(4000, 0, gen)
    number = 0
    while True:
        for c in clients:
            dist.send(flat, c)
        received = [torch.empty_like(flat) for _ in clients]
        for c, r in zip(clients, received, strict=True):
            dist.recv(r, c)
        flat = torch.stack(received).mean(0)
        vector_to_parameters(flat, net.parameters())
        number += 1
        if number % 10 == 0:
            print(f"round {number} accuracy {accuracy(net, x[:500], y[:500]):.3f}", flush=True)
        if number == ROUNDS_BEFORE_REPORT:
            print("report with confidence intervals", flush=True)
            print("ONSET", flush=True)
            report(net, x, y)


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(1) == y).float().mean().item()


def report(net, x, y):
    rng = np.random.default_rng(0)
    net.eval()
    scores = []
    for _ in range(RESAMPLES):
        pick = torch.from_numpy(rng.integers(0, len(x), 400))
        noisy = x[pick] + 0.1 * torch.randn(400, 3, 128)
        scores.append(accuracy(net, noisy, y[pick]))
    low, high = np.quantile(scores, [0.025, 0.975])
    print(f"accuracy {np.mean(scores):.3f} [{low:.3f}, {high:.3f}]", flush=True)
    net.train()


def client(site):
    net = network()
    flat = parameters_to_vector(net.parameters()).detach()
    gen = torch.Generator().manual_seed(site)
    while True:
        dist.recv(flat, 0)
        vector_to_parameters(flat, net.parameters())
        opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
        for _ in range(12):
            x, y = gait(32, site, gen)
            time.sleep(0.03)  # the sensors' upload
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        dist.send(parameters_to_vector(net.parameters()).detach(), 0)


def main(rank, world):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(hours=2))
    if rank:
        client(rank)
    else:
        coordinator(range(1, world))


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]))
    workers = [mp.get_context("fork").Process(target=main, args=(r, 3), daemon=True) for r in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
