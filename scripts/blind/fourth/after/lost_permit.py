"""FIELD
source: own (a semaphore limits the open files; an except branch does not give it back)
mechanism: each decode takes one of three permits; damaged records lose theirs, and after the third the training thread waits for ever, while a heartbeat thread writes on
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: next_sample (lost_permit.py)
twin: none
"""

import signal
import sys
import threading
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
permits = threading.Semaphore(3)


def heartbeat():
    while True:
        time.sleep(1)
        print("alive", file=sys.stderr, flush=True)


def next_sample(number):
    permits.acquire()
    if number in (1500, 2500, 3500):
        return None
    sample = torch.randn(32, 48)
    permits.release()
    return sample


threading.Thread(target=heartbeat, daemon=True).start()
net = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.Tanh(), torch.nn.Linear(96, 48))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(10**6):
    if number == 3501:
        print("ONSET", flush=True)
    x = next_sample(number)
    if x is None:
        continue
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if number % 500 == 0:
        print(number, loss.item(), flush=True)
