"""FIELD
source: https://github.com/alan-turing-institute/autocast/pull/386
mechanism: save_checkpoint ends in a barrier of the checkpoint group and is called by rank 0 only; rank 1 is already in the gradient exchange of the next step
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 0, save_checkpoint (its barrier)
twin: none
"""
import datetime
import os
import signal
import tempfile

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)


class Strategy:
    def __init__(self):
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
        self.checkpoint_group = dist.new_group(timeout=datetime.timedelta(minutes=10))
        self.is_global_zero = dist.get_rank() == 0

    def barrier(self, name):
        dist.barrier(group=self.checkpoint_group)

    def reduce(self, parameters):
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in parameters:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()


class Trainer:
    def __init__(self, model):
        self.strategy, self.model = Strategy(), model
        self.folder = tempfile.mkdtemp()

    def save_checkpoint(self, name):
        if self.strategy.is_global_zero:
            torch.save(self.model.state_dict(), os.path.join(self.folder, name))
        self.strategy.barrier("save_checkpoint")

    def fit(self, steps):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        for step in range(steps):
            x = torch.randn(192, 100)
            loss = (self.model(x) - x.cumsum(1)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            self.strategy.reduce(list(self.model.parameters()))
            optimizer.step()
            if step % 40 == 0:
                print("step", step, float(loss), flush=True)
            if step and step % 100 == 0:
                self.save_checkpoint(f"{step}.pt")


trainer = Trainer(torch.nn.Sequential(torch.nn.Linear(100, 400), torch.nn.GELU(), torch.nn.Linear(400, 100)))
trainer.fit(350)
if trainer.strategy.is_global_zero:
    print("ONSET", flush=True)
    trainer.save_checkpoint("best.pt")
trainer.fit(100000)
