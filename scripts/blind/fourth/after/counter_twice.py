"""FIELD
source: own (a lock of multiprocessing is taken again by a callback within the locked section)
mechanism: the training thread takes a lock of multiprocessing to publish its counters, and a callback that an earlier version did not have takes it again; no child was ever started
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: count (counter_twice.py), publish (counter_twice.py)
twin: none
"""

import multiprocessing as mp
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
lock = mp.Lock()
counters, callbacks = {"steps": 0, "alarms": 0}, []


def count(name):
    with lock:
        counters[name] += 1


def publish(step):
    with lock:
        counters["steps"] = step
        for callback in callbacks:
            callback("alarms")


net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(10**6):
    x = torch.randn(128, 64)
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 6000:
        print("ONSET", flush=True)
        callbacks.append(count)
    if step % 10 == 0:
        publish(step)
    if step % 500 == 0:
        print(step, loss.item(), flush=True)
