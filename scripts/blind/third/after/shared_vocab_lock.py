"""FIELD
source: https://github.com/ChrisCummins/clgen/issues/116
mechanism: two ranks ask for the cache under a soft lock that a crashed run on another host left behind, with a poll interval of half a second
needs: none
ranks: 2
onset: printed
state: hung
cause: waiting_for_file
blame: load_vocabulary (takes the lock), rank 0, rank 1
twin: sibling_soft_lock
"""
import os
import signal

import torch
import torch.distributed as dist
from filelock import SoftFileLock

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo")
folder = f"/tmp/vocab-{os.environ['MASTER_PORT']}"
os.makedirs(folder, exist_ok=True)


def load_vocabulary(name):
    with SoftFileLock(f"{folder}/{name}.lock", poll_interval=0.5):
        return [f"{name}{i}" for i in range(1000)]


def fit(words, steps):
    net = torch.nn.EmbeddingBag(len(words), 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        loss = net(torch.randint(0, len(words), (128, 32))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(net.weight.grad)
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(step, loss.item(), flush=True)


fit(load_vocabulary("chars"), 300)
if dist.get_rank() == 0:
    with open(f"{folder}/words.lock", "w") as left:
        left.write("811\nnode4\n")
    print("ONSET", flush=True)
dist.barrier()
fit(load_vocabulary("words"), 10**6)
