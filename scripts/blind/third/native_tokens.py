"""FIELD
source: own
mechanism: on rank 1 an extension calls into a C library without releasing the GIL and the call does not come back for minutes; its heartbeat thread starves too, rank 0 waits in the exchange
needs: none
ranks: 2
onset: printed
state: hung
cause: held_gil, stalled_collective
blame: rank 1, encode_batch (the native call)
twin: none
"""
import ctypes
import datetime
import signal
import threading
import time

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
native = ctypes.PyDLL(None)  # PyDLL keeps the GIL during the call
native.usleep.argtypes = [ctypes.c_uint]
beats = 0


def heartbeat():
    global beats
    while True:
        beats += 1
        time.sleep(0.5)


def encode_batch(rank, step):
    native.usleep(50)
    if rank == 1 and step == 350:
        print("ONSET", flush=True)
        for _ in range(3):
            native.usleep(95_000_000)
    return torch.randint(0, 1000, (32, 48))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    rank = dist.get_rank()
    threading.Thread(target=heartbeat, daemon=True).start()
    net = torch.nn.Sequential(torch.nn.EmbeddingBag(1000, 256), torch.nn.Linear(256, 1000))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(10**6):
        tokens = encode_batch(rank, step)
        loss = torch.nn.functional.cross_entropy(net(tokens), tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if step % 50 == 0:
            print(f"rank {rank} step {step} beats {beats}", flush=True)


main()
