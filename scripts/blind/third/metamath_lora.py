"""FIELD
source: https://github.com/huggingface/peft/pull/2894
mechanism: gc.collect() after each step, in a process with very many Python objects
needs: none
ranks: 1
onset: printed
state: slow
cause: garbage_collection
blame: tidy (collects), train_step (calls it)
twin: none
"""
import gc
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)


class LoraLinear(torch.nn.Module):
    def __init__(self, size, rank=8):
        super().__init__()
        self.base = torch.nn.Linear(size, size)
        self.base.requires_grad_(False)
        self.a = torch.nn.Parameter(torch.randn(rank, size) * 0.01)
        self.b = torch.nn.Parameter(torch.zeros(size, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def tidy():
    gc.collect()


def train_step(model, optimizer):
    x = torch.randn(32, 256)
    loss = (model(x) - x.roll(1, 0)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tidy()
    return loss


examples = [{"query": [i, i + 1], "response": [str(i)], "meta": {"source": (i,)}} for i in range(450_000)]
model = torch.nn.Sequential(*[LoraLinear(256) for _ in range(4)])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(10**6):
    loss = train_step(model, optimizer)
    if step == 5:
        print("ONSET", flush=True)
    if step % 10 == 0:
        print("step", step, loss.item(), flush=True)
