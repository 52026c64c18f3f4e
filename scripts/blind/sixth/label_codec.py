"""FIELD
source: own
mechanism: the shards of the second half of the set are raw files for two ranks and xz archives for the third; that rank
    unpacks one in each step while the others wait for it in the all_reduce
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: slow
cause: straggling_rank, serial_loading
blame: rank 2
twin: none
"""

import io
import lzma
import multiprocessing as mp
import os
import shutil
import signal
import socket
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SHAPE = (16, 3, 160, 160)


def make_archive(folder):
    pixels = np.random.default_rng(5).integers(0, 200, SHAPE, dtype="uint8").astype("float32") / 255
    np.save(os.path.join(folder, "raw.npy"), pixels)
    with lzma.open(os.path.join(folder, "packed.npy.xz"), "wb", preset=0) as file:
        np.save(file, pixels)


def read_raw(folder):
    return np.load(os.path.join(folder, "raw.npy"))


def read_packed(folder):
    with open(os.path.join(folder, "packed.npy.xz"), "rb") as file:
        return np.load(io.BytesIO(lzma.decompress(file.read())))


def stream(folder, rank, halfway):
    start = time.monotonic()
    while True:
        second = time.monotonic() - start > halfway
        if second and rank == 2:
            yield torch.from_numpy(read_packed(folder))
        else:
            yield torch.from_numpy(read_raw(folder))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 7, stride=8)
        self.body = nn.Conv2d(12, 24, 3, stride=2)
        self.fc = nn.Linear(24, 8)

    def forward(self, x):
        return self.fc(F.relu(self.body(F.relu(self.stem(x)))).mean((2, 3)))


def work(rank, world, net, opt, port, folder, halfway):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    net = DDP(net)
    start, told = time.monotonic(), False
    for step, pixels in enumerate(stream(folder, rank, halfway)):
        loss = F.cross_entropy(net(pixels), torch.randint(8, (len(pixels),)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"{step} {loss.item():.3f}", flush=True)
        if rank == 0 and not told and time.monotonic() - start > halfway + 1:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        free_port = sock.getsockname()[1]
    shards = tempfile.mkdtemp()
    make_archive(shards)
    module = Net()
    sgd = torch.optim.SGD(module.parameters(), 0.01)
    context = mp.get_context("fork")
    children = [context.Process(target=work, args=(r, 3, module, sgd, free_port, shards, 16)) for r in range(3)]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join()
    finally:
        shutil.rmtree(shards, ignore_errors=True)
