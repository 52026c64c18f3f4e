"""FIELD
source: pytorch/pytorch#189245 (a lock file made with O_EXCL outlives the killed process that made it; every later one waits)
mechanism: between epochs rank 0 starts a helper that rebuilds the index of tracks and takes a lock file; the helper is killed
    by its memory limit and leaves the lock; rank 0 polls for its removal, rank 1 waits for rank 0 in a broadcast
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: stalled_collective, waiting_for_file
blame: rank 0
twin: none
"""
import ctypes
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as tmp
import torch.nn as nn

logging.basicConfig(level=logging.INFO, format="[%(process)d] %(message)s")

HELPER = """
import os, signal, sys, time
import numpy as np
folder, epoch = sys.argv[1], int(sys.argv[2])
handle = os.open(folder + "/index.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.write(handle, str(os.getpid()).encode())
os.close(handle)
order = np.random.default_rng(epoch).permutation(4000)
if epoch >= 4:
    os.kill(os.getpid(), signal.SIGKILL)
np.save(folder + "/index.npy", order)
os.unlink(folder + "/index.lock")
"""


@contextmanager
def baton(path, every=0.5):
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            time.sleep(every)
    try:
        yield
    finally:
        os.unlink(path)


def refresh(folder, epoch):
    if epoch == 4:
        print("ONSET", flush=True)
    done = subprocess.run([sys.executable, "-c", HELPER, str(folder), str(epoch)], check=False)
    if done.returncode:
        logging.warning("indexer ended with %d, the index of the last epoch stays", done.returncode)
    with baton(folder / "index.lock"):
        return torch.from_numpy(np.load(folder / "index.npy"))


class TrackNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 64)
        self.mix = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.next_ = nn.Linear(64, 2)

    def forward(self, x):
        return self.next_(self.mix(self.embed(x))[:, -1])


def main(rank, port, folder):
    signal.alarm(300)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    tracks = torch.randn(4000, 20, 6, generator=torch.Generator().manual_seed(0)).cumsum(1) / 5
    model = nn.parallel.DistributedDataParallel(TrackNet())
    optim = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(1000):
        order = refresh(folder, epoch) if rank == 0 else torch.empty(4000, dtype=torch.int64)
        dist.broadcast(order, 0)
        for rows in order[rank::2].split(16)[:110]:
            batch = tracks[rows]
            loss = (model(batch[:, :-1]) - batch[:, -1, :2]).abs().mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
        if rank == 0:
            logging.info("epoch %d: %.4f", epoch, loss.item())


if __name__ == "__main__":
    signal.alarm(300)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    tmp.start_processes(main, args=(port, pathlib.Path(tempfile.mkdtemp(prefix="eels_"))), nprocs=2, start_method="fork")
