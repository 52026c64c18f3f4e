"""FIELD
source: https://github.com/NVIDIA/nccl/issues/479
mechanism: two pipeline stages exchange activations and gradients; after a change of the schedule both receive first, and neither sends
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective, wedged_collective
blame: receive (both ranks), rank 0, rank 1
twin: none
"""
import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
SHAPE = (64, 128)


def receive(peer):
    buffer = torch.empty(SHAPE)
    dist.recv(buffer, src=peer)
    return buffer


def send(tensor, peer):
    dist.send(tensor.detach().contiguous(), dst=peer)


class Stage:
    def __init__(self, rank):
        self.rank, self.peer = rank, 1 - rank
        self.block = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
        self.optimizer = torch.optim.SGD(self.block.parameters(), lr=0.01)

    def first(self):
        x = torch.randn(SHAPE)
        y = self.block(x)
        send(y, self.peer)
        y.backward(receive(self.peer))

    def last(self):
        x = receive(self.peer).requires_grad_()
        loss = (self.block(x) - 1).square().mean()
        loss.backward()
        send(x.grad, self.peer)
        return loss.item()

    def step(self, number):
        self.optimizer.zero_grad()
        if number == 500:
            if self.rank == 0:
                print("ONSET", flush=True)
            early = receive(self.peer)  # 1F1B: "post the receive early", on both sides
            send(early, self.peer)
        loss = self.first() if self.rank == 0 else self.last()
        self.optimizer.step()
        return loss


dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
stage = Stage(dist.get_rank())
for number in range(10**6):
    loss = stage.step(number)
    if number % 50 == 0 and loss is not None:
        print("step", number, loss, flush=True)
