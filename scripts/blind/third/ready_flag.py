"""FIELD
source: https://github.com/KempnerInstitute/KempnerForge/issues/49
mechanism: ranks disagree about whether a resume file exists; rank 0 waits in the store for a key that only a rank which found the file would set, the two others are in the barrier behind it
needs: none
ranks: 3
onset: printed
state: hung
cause: stalled_collective, blocked_rendezvous, blocked_network
blame: rank 0, load (waits for the key), read_resume
twin: none
"""
import datetime
import os
import signal
import tempfile

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)


class CheckpointManager:
    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank
        self.store = dist.distributed_c10d._get_default_store()

    def exists(self, tag):
        visible = os.path.exists(os.path.join(self.folder, tag))
        return visible if self.rank else tag == "second"  # the attribute cache of rank 0's mount is stale

    def load(self, tag):
        if self.exists(tag):
            key = f"resume/{tag}"
            if self.rank == 0:
                print("ONSET", flush=True)
            self.store.wait([key], datetime.timedelta(minutes=30))
        dist.barrier()


def steps(net, optimizer, count, rank):
    for step in range(count):
        x = torch.randn(256, 48)
        loss = (net(x) - x.sort(1).values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if step % 50 == 0 and rank == 0:
            print("step", step, loss.item(), flush=True)


dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
manager = CheckpointManager(tempfile.mkdtemp(), rank)
net = torch.nn.Sequential(torch.nn.Linear(48, 256), torch.nn.ReLU(), torch.nn.Linear(256, 48))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
manager.load("first")
steps(net, optimizer, 200, rank)
manager.load("second")
steps(net, optimizer, 100000, rank)
