"""FIELD
source: EugenHotaj/pytorch-generative#10 (the trainer is probably slow since it logs too much)
mechanism: after a hunt for NaN the script prints every gradient with the "full" print profile at each step, to a file that is flushed each time
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_output, host_bound_python
blame: dump_gradients (debug_prints.py)
twin: none
"""

import os
import signal
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
torch.set_printoptions(profile="full", linewidth=200)
dump = open(os.path.join(tempfile.mkdtemp(), "debug.txt"), "w+")


def dump_gradients(net, step):
    if dump.tell() > 200_000_000:
        dump.seek(0)
        dump.truncate()
    for name, p in net.named_parameters():
        print(step, name, p.grad, file=dump)
        dump.flush()
        os.fsync(dump.fileno())


net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3),
    torch.nn.ReLU(),
    torch.nn.Conv2d(16, 32, 3),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(128, 10),
)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(10**6):
    x, y = torch.randn(8, 3, 24, 24), torch.randint(0, 10, (8,))
    loss = torch.nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    if step >= 200:
        dump_gradients(net, step)
    opt.step()
    if step == 205:
        print("ONSET", flush=True)
    if step % 50 == 0:
        print("step", step, loss.item(), flush=True)
