"""FIELD
source: own (a command-line tool without its file argument reads its standard input)
mechanism: after each round the weights are converted by an external program; once the list of files is empty, and the program reads from its standard input, a pipe into which nobody writes
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_child, blocked_pipe, waiting_for_input
blame: convert (converter_stdin.py)
twin: none
"""

import os
import signal
import subprocess
import sys
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
held_read, held_write = os.pipe()
os.dup2(held_read, 0)
folder = tempfile.mkdtemp()
net = torch.nn.Linear(256, 256)
opt = torch.optim.Adam(net.parameters())


def convert(files):
    subprocess.run(["md5sum", *files], stdout=subprocess.DEVNULL, check=True, pass_fds=())


for round_number in range(10**6):
    for _ in range(300):
        x = torch.randn(64, 256)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    files = []
    if round_number != 12:
        path = os.path.join(folder, "weights.pt")
        torch.save(net.state_dict(), path)
        files = [path]
    else:
        print("ONSET", flush=True)
    convert(files)
    print("round", round_number, loss.item(), flush=True)
