"""FIELD
source: own (anomaly detection was left on after a hunt for NaN)
mechanism: torch.autograd.set_detect_anomaly(True) is left on in a loop of many small operations
needs: none
ranks: 1
onset: printed
state: slow
cause: debug_apis_on
blame: none
twin: none
"""

import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)
cell, head = torch.nn.GRUCell(16, 32), torch.nn.Linear(32, 16)
opt = torch.optim.Adam([*cell.parameters(), *head.parameters()])
for step in range(10**6):
    state, loss = torch.zeros(8, 32), 0.0
    xs = torch.randn(60, 8, 16)
    for now, after in zip(xs, xs[1:]):
        state = cell(now, state)
        loss = loss + (head(state) - after).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 20:
        print("ONSET", flush=True)
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
