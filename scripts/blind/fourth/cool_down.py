"""FIELD
source: own (a curriculum on a laptop or a shared box that lets the machine rest between rounds)
mechanism: rounds of twelve seconds of training with a planned pause of twenty seconds after each, in which the learning rate and the difficulty are changed
needs: none
ranks: 1
onset: printed
state: healthy, busy, slow
cause: any
blame: none
twin: none
"""

import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.GRU(24, 96, batch_first=True)
head = torch.nn.Linear(96, 24)
opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=2e-3)


def practise(length, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        x = torch.randn(16, length, 24).cumsum(1) / 4
        loss = (head(net(x)[0])[:, :-1] - x[:, 1:]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


for level in range(10**6):
    loss = practise(8 + 4 * min(level, 20), 12)
    print(f"level {level} loss {loss:.4f}; pausing 20 s", flush=True)
    for group in opt.param_groups:
        group["lr"] *= 0.95
    if level == 0:
        print("ONSET", flush=True)
    time.sleep(20)
