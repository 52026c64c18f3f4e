"""FIELD
source: own
mechanism: the trainer waits for a file lock that a sibling process of the same job holds while it builds an index, busily, for two minutes and a half
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work
blame: none
twin: corpus_lock
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

import torch
from filelock import FileLock

BUILDER = """
import signal, sys, time
from filelock import FileLock
signal.alarm(300)
lock, out, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with FileLock(lock):
    print('building', flush=True)
    end, index, n = time.monotonic() + seconds, {}, 0
    with open(out, 'w') as file:
        while time.monotonic() < end:
            for token in ('t%d' % (n * 7919 % 5003),) * 50:
                index.setdefault(token, []).append(n % 1000)
                n += 1
            if n % 100000 == 0:
                file.write('%d\\n' % n)
                file.flush()
                index.clear()
"""

if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp()
    lock, index = os.path.join(folder, "index.lock"), os.path.join(folder, "index.txt")
    ranker = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(ranker.parameters(), lr=1e-3)
    for step in range(10**6):
        if step == 400:
            builder = subprocess.Popen([sys.executable, "-c", BUILDER, lock, index, "150"], stdout=subprocess.PIPE)
            builder.stdout.readline()
            print("ONSET", flush=True)
            with FileLock(lock):
                print("index ready", os.path.getsize(index), flush=True)
        x = torch.randn(256, 64)
        loss = torch.nn.functional.softplus(ranker(x) - ranker(-x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print("step", step, loss.item(), flush=True)
        time.sleep(0.001)
