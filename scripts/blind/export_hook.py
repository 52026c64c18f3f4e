"""FIELD
source: https://github.com/python/cpython/issues/76116 (bpo-31935, bpo-37424) and https://github.com/NousResearch/hermes-agent/pull/35225 (a daemon started by the child inherits the captured stdout)
mechanism: the export tool starts a viewer in the background and ends; the viewer has inherited the captured pipe, so subprocess.run waits for an end of file that never comes
needs: cpu
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, blocked_child
blame: export (export_hook.py)
twin: none
"""
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

TOOL = r"""
import os, subprocess, sys
size = os.path.getsize(sys.argv[1])
if sys.argv[2] == "--preview":
    subprocess.Popen([sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1",
                      "--directory", os.path.dirname(sys.argv[1])])
print("exported", size, "bytes")
"""


def export(model, path, *flags):
    torch.save(model.state_dict(), path)
    done = subprocess.run([sys.executable, "-c", TOOL, path, *flags], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def fit(model, opt, steps):
    for _ in range(steps):
        x = torch.randn(64, 1, 28, 28)
        y = (x.mean((1, 2, 3)) > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                          nn.Flatten(), nn.Linear(32 * 36, 2))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    out = tempfile.mkdtemp(prefix="export_")
    for epoch in range(20):
        loss = fit(model, opt, 700)
        flag = "--preview" if epoch == 2 else "--quiet"
        if epoch == 2:
            print("ONSET", flush=True)
        print(epoch, round(loss, 4), export(model, os.path.join(out, "model.pt"), flag), flush=True)


if __name__ == "__main__":
    main()
