"""FIELD
source: python/cpython#126434 (multiprocessing.Event.set() in a signal handler deadlocks when the interrupted frame is inside is_set())
mechanism: the scheduler's notice (SIGUSR1) calls Event.set() in the handler while the training loop is inside Event.is_set(); both want the same semaphore, in one thread
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: on_notice (preempt_event.py), should_stop (preempt_event.py)
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
preempted = mp.Event()
notices = 0


def on_notice(signum, frame):
    global notices
    preempted.set()
    preempted.clear()
    notices += 1


def should_stop():
    for _ in range(2000):
        if preempted.is_set():
            return True
    return False


def scheduler(delay):
    time.sleep(delay)
    print("ONSET", flush=True)
    while True:
        seen = notices
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
        if seen == notices:
            time.sleep(1.0)
            if seen == notices:
                return


signal.signal(signal.SIGUSR1, on_notice)
model = torch.nn.LSTM(32, 64, batch_first=True)
head = torch.nn.Linear(64, 32)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
threading.Thread(target=scheduler, args=(9,), daemon=True).start()
step = 0
while not should_stop() or True:
    x = torch.randn(16, 24, 32)
    loss = (head(model(x)[0])[:, :-1] - x[:, 1:]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 50 == 0:
        print(f"iter {step}: loss {loss.item():.4f}", flush=True)
