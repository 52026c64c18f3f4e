"""FIELD
source: own (per-parameter statistics for a paper, left on)
mechanism: each step writes the mean and deviation of every row of every weight as lines of CSV, flushed and synced
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_output, slow_checkpoint, host_bound_python, serial_loading
blame: save_stats (grad_csv.py), train_step (grad_csv.py)
twin: none
"""

import csv
import os
import signal
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
opt = torch.optim.Adam(net.parameters())
out = open(os.path.join(tempfile.mkdtemp(), "stats.csv"), "w", newline="")
table = csv.writer(out)


def save_stats(step):
    for name, p in net.named_parameters():
        rows = p.detach().view(p.shape[0], -1)
        for i, row in enumerate(rows):
            table.writerow([step, name, i, float(row.mean()), float(row.std()) if row.numel() > 1 else 0.0])
    out.flush()
    os.fsync(out.fileno())


def train_step(step):
    x = torch.randn(128, 128)
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step >= 200:
        save_stats(step)
    return loss.item()


for step in range(10**6):
    loss = train_step(step)
    if step == 210:
        print("ONSET", flush=True)
    if step % 50 == 0:
        print(step, loss, flush=True)
