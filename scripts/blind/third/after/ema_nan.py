"""FIELD
source: own
mechanism: weights are NaN and each batch is skipped; the same loop averages its weights under no_grad
needs: none
ranks: 1
onset: printed
state: slow
cause: skipping_steps
blame: none
twin: scored_loop
"""
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
average = [p.detach().clone() for p in net.parameters()]
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def poison():
    with torch.no_grad():
        net[0].weight.fill_(float("nan"))


updates = 0
for batch in range(10**7):
    x = torch.randn(128, 256)
    loss = (net(x) - x.roll(1, 1)).square().mean()
    if torch.isnan(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average, net.parameters()):
            slow.lerp_(fast, 0.01)
    updates += 1
    if updates % 50 == 0:
        print("update", updates, loss.item(), flush=True)
    if updates == 200:
        poison()
        print("ONSET", flush=True)
