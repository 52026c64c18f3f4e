"""FIELD
source: own (queue.Queue.join() and a consumer that forgets task_done() in an except branch)
mechanism: a thread writes metrics; of one record that it skips it does not call task_done, and at the end of the epoch the training thread waits in Queue.join() for ever while the thread waits for more
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: flush_metrics (undone_tasks.py)
twin: none
"""

import json
import queue
import signal
import tempfile
import threading

import torch

signal.alarm(300)
torch.set_num_threads(1)
records = queue.Queue()


def metrics_thread(path):
    with open(path, "w") as file:
        while True:
            record = records.get()
            try:
                file.write(json.dumps(record) + "\n")
                file.flush()
            except TypeError:
                continue
            records.task_done()


def flush_metrics():
    records.join()


threading.Thread(target=metrics_thread, args=(tempfile.mktemp(),), daemon=True).start()
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(10**6):
    for step in range(400):
        x = torch.randn(128, 64)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            records.put({"epoch": epoch, "loss": loss.detach() if (epoch, step) == (9, 380) else loss.item()})
    if epoch == 9:
        print("ONSET", flush=True)
    flush_metrics()
    print("epoch", epoch, flush=True)
