"""FIELD
source: own (gloo matches send and recv by their tag; a counter that starts again on one side)
mechanism: a coordinator hands out tasks to two workers by send and recv with the round as the tag; after its own round counter is reset, worker 2 sends and receives with other tags than the coordinator
needs: none
ranks: 3
onset: printed
state: hung
cause: mismatched_collective, stalled_collective, wedged_collective, blocked_network, unknown
blame: rank 0, rank 2, gather_round (wrong_tag.py), serve (wrong_tag.py)
twin: none
"""

import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(hours=2))
rank = dist.get_rank()
DIM = 2048


def gather_round(weights, number):
    total = torch.zeros(DIM)
    for worker in (1, 2):
        dist.send(weights, worker, tag=number)
    for worker in (1, 2):
        update = torch.empty(DIM)
        dist.recv(update, worker, tag=number)
        total += update
    return total / 2


def serve():
    number = 0
    net = torch.nn.Linear(DIM, 64, bias=False)
    while True:
        weights = torch.empty(DIM)
        dist.recv(weights, 0, tag=number)
        for _ in range(4):
            x = torch.randn(64, DIM)
            loss = (net(x * weights).sum(1) - x.sum(1)).square().mean()
            (grad,) = torch.autograd.grad(loss, net.weight)
            net.weight.data -= 1e-5 * grad
        dist.send(grad.mean(0), 0, tag=number)
        number += 1
        if rank == 2 and number == 120:
            print("ONSET", flush=True)
            number = 0


if rank:
    serve()
else:
    weights = torch.ones(DIM)
    for number in range(10**6):
        weights -= 0.01 * gather_round(weights, number)
        if number % 10 == 0:
            print("round", number, float(weights.norm()), flush=True)
