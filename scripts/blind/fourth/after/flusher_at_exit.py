"""FIELD
source: after stable-baselines#570-like reports (the program does not end)
mechanism: training is over; a thread that is no daemon and flushes metrics every three seconds keeps the process alive
needs: none
ranks: 1
onset: printed
state: hung
cause: hung_at_exit
blame: flush_forever (flusher_at_exit.py)
twin: none
"""

import signal
import threading
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
values = []


def flush_forever():
    while True:
        time.sleep(3)
        values.clear()


threading.Thread(target=flush_forever).start()
net = torch.nn.Linear(256, 256)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
end = time.monotonic() + 10
while time.monotonic() < end:
    x = torch.randn(64, 256)
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    values.append(loss.item())
print("done", loss.item(), flush=True)
print("ONSET", flush=True)
