"""FIELD
source: own
mechanism: the soft lock is held by a child of the job that builds the shard, busily, for two minutes and a half
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work
blame: none
twin: shared_vocab_lock
"""
import signal
import subprocess
import sys
import tempfile

import torch
from filelock import SoftFileLock

BUILDER = """
import signal, sys, time, zlib
from filelock import SoftFileLock
signal.alarm(300)
with SoftFileLock(sys.argv[1]):
    print('held', flush=True)
    end, block = time.monotonic() + 150, bytes(range(256)) * 2000
    while time.monotonic() < end:
        block = zlib.compress(block, 6)[:100] * 5000
"""
signal.alarm(300)
torch.set_num_threads(1)
path = tempfile.mkdtemp() + "/shard.lock"
net = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(10**6):
    if step == 600:
        builder = subprocess.Popen([sys.executable, "-c", BUILDER, path], stdout=subprocess.PIPE)
        builder.stdout.readline()
        print("ONSET", flush=True)
        with SoftFileLock(path):
            pass
    x = torch.randn(256, 256)
    loss = (net(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item(), flush=True)
