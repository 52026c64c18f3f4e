"""FIELD
source: after KempnerInstitute/KempnerForge#49 (ranks wait in the store for a key that is never set)
mechanism: the ranks agree on each round through keys of a TCPStore; after a resume rank 1 counts from another number, and both wait for keys that never come
needs: none
ranks: 2
onset: printed
state: hung
cause: blocked_rendezvous, stalled_collective, mismatched_collective, blocked_network, unknown
blame: rank 0, rank 1, round_ready (key_of_the_round.py)
twin: none
"""

import datetime
import os
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
store = dist.TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0, timeout=datetime.timedelta(hours=3)
)
net = torch.nn.Linear(128, 128)
opt = torch.optim.SGD(net.parameters(), lr=0.05)


def round_ready(number):
    store.set(f"round/{number}/{rank}", "1")
    store.wait([f"round/{number}/{1 - rank}"])


number = 0
while True:
    round_ready(number)
    for _ in range(100):
        x = torch.randn(64, 128)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    number += 1
    if rank == 0:
        print("round", number, loss.item(), flush=True)
    if number == 40 and rank == 1:
        print("ONSET", flush=True)
        number = 1000
