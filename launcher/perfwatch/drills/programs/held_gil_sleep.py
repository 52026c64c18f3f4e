"""A C extension sleeps without letting go of the GIL (ctypes.PyDLL keeps it), in a side thread; the trainer wants it
back.
"""

import ctypes
import threading

import stage
import torch


def query_license_server():
    stage.onset()
    ctypes.PyDLL(None).sleep(1_000_000)


def loop(options):
    torch.set_num_threads(1)
    net = torch.nn.Linear(600, 600)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for it in range(10**7):
        if it == options.steps:
            threading.Thread(target=query_license_server, daemon=True).start()
        opt.zero_grad()
        net(torch.randn(100, 600)).mean().backward()
        opt.step()


loop(stage.arguments())
