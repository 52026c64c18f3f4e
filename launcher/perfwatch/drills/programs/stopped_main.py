"""A single-process run is suspended as if by Ctrl-Z (SIGSTOP from another process)."""

import os
import signal
import subprocess
import sys

import stage
import torch


def suspend_myself():
    stage.onset()
    subprocess.Popen([sys.executable, "-c", f"import os; os.kill({os.getpid()}, {int(signal.SIGSTOP)})"])


options = stage.arguments()
torch.set_num_threads(1)
weights = torch.randn(500, 500, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=1e-3)
for iteration in range(10**7):
    if iteration == options.steps:
        suspend_myself()
    optimizer.zero_grad()
    torch.linalg.matrix_norm(weights @ torch.randn(500, 200)).backward()
    optimizer.step()
