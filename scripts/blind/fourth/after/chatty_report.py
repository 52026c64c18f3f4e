"""FIELD
source: own (model summaries at each step)
mechanism: a function prints all weights of the first layer at each step to standard output
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_output, host_bound_python
blame: checkpoint_report (chatty_report.py)
twin: none
"""

import signal
import sys

import torch

signal.alarm(300)
torch.set_num_threads(1)
torch.set_printoptions(threshold=10**6)
net = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def checkpoint_report(step):
    print("step", step)
    print(net[0].weight, file=sys.stderr)
    sys.stderr.flush()


for step in range(10**6):
    loss = torch.nn.functional.cross_entropy(net(torch.randn(64, 64)), torch.randint(0, 10, (64,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step >= 500:
        checkpoint_report(step)
    if step == 505:
        print("\nONSET", flush=True)
