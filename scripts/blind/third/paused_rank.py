"""FIELD
source: own
mechanism: rank 1 receives SIGSTOP from a resource manager's script and is never continued; rank 0 waits for it in the exchange
needs: none
ranks: 2
onset: printed
state: hung
cause: stopped
blame: rank 1, main
twin: none
"""
import datetime
import os
import signal
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

# A stopped process hears no alarm: whatever else ends, it is ended after five minutes.
GUARD = """
import os, select, signal, sys
target = os.pidfd_open(int(sys.argv[1]))
ends = select.poll()
ends.register(target, select.POLLIN)
if not ends.poll(285_000):
    signal.pidfd_send_signal(target, signal.SIGKILL)
"""


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=280))
    rank = dist.get_rank()
    model = DDP(torch.nn.Sequential(torch.nn.Linear(200, 400), torch.nn.Softplus(), torch.nn.Linear(400, 200)))
    optimizer = torch.optim.Adadelta(model.parameters())
    for step in range(10**6):
        x = torch.rand(200, 200)
        loss = torch.nn.functional.l1_loss(model(x), x.flip(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(rank, step, loss.item(), flush=True)
        if rank == 1 and step == 300:
            print("ONSET", flush=True)
            subprocess.Popen([sys.executable, "-c", GUARD, str(os.getpid())], start_new_session=True)
            subprocess.run(["kill", "-STOP", str(os.getpid())], check=True)


main()
