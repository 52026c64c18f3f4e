"""FIELD
source: https://github.com/huggingface/datasets/issues/1672
mechanism: a DataLoader worker of rank 1 takes a file lock on a cache entry that a process outside the job holds; rank 0 waits for rank 1 in the gradient exchange
needs: none
ranks: 2
onset: printed
state: hung
cause: stuck_worker, waiting_for_file, blocked_storage
blame: read_cached (in flock), __getitem__ (calls it)
twin: none
"""
import datetime
import fcntl
import os
import signal
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

HOLDER = "import fcntl, signal, sys; signal.alarm(300); f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); signal.pause()"


class Cached(Dataset):
    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank

    def __len__(self):
        return 10**6

    def read_cached(self, i):
        entry = 7 if self.rank == 1 and i >= 6000 else i % 5
        with open(os.path.join(self.folder, f"{entry}.lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return torch.full((96,), float(entry))

    def __getitem__(self, i):
        return self.read_cached(i) + torch.randn(96)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    rank = dist.get_rank()
    folder = tempfile.mkdtemp()
    if rank == 1:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, os.path.join(folder, "7.lock")], stdout=subprocess.PIPE, start_new_session=True
        )
        holder.stdout.readline()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(96, 512), torch.nn.ReLU(), torch.nn.Linear(512, 96)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(DataLoader(Cached(folder, rank), batch_size=16, num_workers=1)):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"rank {rank} step {step}", flush=True)
        if step == 374 and rank == 1:
            print("ONSET", flush=True)
