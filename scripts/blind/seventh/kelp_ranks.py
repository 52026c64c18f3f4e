"""FIELD
source: own; one host of three still has the old configuration, in which each batch goes through an external filter
mechanism: three ranks segment aerial pictures; from the second site on, rank 1 sends each batch through a child process
    (started anew each time, about a second), and the other two wait for it in the all-reduce of each step
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: slow
cause: straggling_rank, serial_loading
blame: rank 1
twin: none
"""
import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

FILTER = """
import sys, signal
import numpy as np
signal.alarm(60)
pictures = np.frombuffer(sys.stdin.buffer.read(), dtype=np.float32).reshape(8, 3, 40, 40).copy()
for picture in pictures:
    for band in picture:
        padded = np.pad(band, 2, mode="edge")
        for r in range(40):
            for c in range(40):
                band[r, c] = np.median(padded[r : r + 5, c : c + 5])
sys.stdout.buffer.write(pictures.tobytes())
"""


def denoise(pictures):
    done = subprocess.run([sys.executable, "-c", FILTER], input=pictures.numpy().tobytes(), capture_output=True, check=True)
    return torch.from_numpy(np.frombuffer(done.stdout, dtype=np.float32).reshape(pictures.shape).copy())


def pictures(rng):
    x = torch.from_numpy(rng.random((8, 3, 40, 40), dtype=np.float32))
    return x, (F.avg_pool2d(x[:, :1], 5, 1, 2) > 0.5).float()


class Segmenter(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.down = nn.Conv2d(3, width, 3, 2, 1)
        self.middle = nn.Sequential(*[nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU()) for _ in range(3)])
        self.up = nn.ConvTranspose2d(width, 1, 4, 2, 1)

    def forward(self, x):
        return self.up(self.middle(torch.relu(self.down(x))))


def sync(params, world):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def worker(rank, world):
    signal.alarm(300)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    net, rng = Segmenter(), np.random.default_rng(rank)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    born, shown, old_config, step = time.monotonic(), time.monotonic(), False, 0
    while True:
        x, y = pictures(rng)
        if rank == 1 and time.monotonic() - born > 15:
            if not old_config:
                old_config = True
                print("ONSET", flush=True)
            x = denoise(x)
        loss = F.binary_cross_entropy_with_logits(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        sync(net.parameters(), world)
        optimizer.step()
        step += 1
        if rank == 0 and time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"step {step} bce {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    rank = parser.parse_args().rank
    if rank is not None:
        worker(rank, 3)
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [subprocess.Popen([sys.executable, __file__, "--rank", str(r)], env=env) for r in range(3)]
    for process in children:
        process.wait()
