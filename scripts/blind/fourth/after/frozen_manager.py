"""FIELD
source: own (the Manager process of multiprocessing was stopped by a debugger session that was left)
mechanism: the loop keeps its counters in a Manager's dictionary; an operator stops the manager's process, and the next call waits for its answer for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: stopped, stuck_worker, blocked_child
blame: none
twin: none
"""

import multiprocessing as mp
import os
import signal
import threading
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


def stop_it(pid):
    time.sleep(9)
    print("ONSET", flush=True)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(250)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    manager = mp.Manager()
    shared = manager.dict(steps=0)
    threading.Thread(target=stop_it, args=(manager._process.pid,), daemon=True).start()
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
    opt = torch.optim.Adam(net.parameters())
    for step in range(10**6):
        x = torch.randn(64, 64)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        shared["steps"] = step
        if step % 500 == 0:
            print(step, loss.item(), flush=True)
