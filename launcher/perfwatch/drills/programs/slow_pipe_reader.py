"""Look-alike of a full pipe: whoever reads our standard output takes 4 kB every 0.5 s, so each log line waits, and
passes.
"""

import os
import sys
import time

import stage
import torch


def slow_collector(source):
    while os.read(source, 4096):
        time.sleep(0.5)


def attach_collector():
    source, sink = os.pipe()
    stage.outsider(lambda: (os.close(sink), slow_collector(source)))
    os.close(source)
    os.dup2(sink, 1)
    os.close(sink)


def verbose(tensor, step):
    if step > 0:
        sys.stdout.write(f"{tensor.tolist()}\n")
        sys.stdout.flush()


opts = stage.arguments()
torch.set_num_threads(1)
attach_collector()
net = torch.nn.Linear(600, 400)
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(10**6):
    if step == opts.steps:
        stage.onset()
    out = net(torch.randn(128, 600))
    sgd.zero_grad()
    out.std().backward()
    sgd.step()
    verbose(out[0], step - opts.steps)
