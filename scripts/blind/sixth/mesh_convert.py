"""FIELD
source: voxel51/eta#647, Zulko/moviepy#576 (the decoder's stderr is a pipe that nothing reads; when it is full the decoder stops)
mechanism: a converter child answers each request on stdout; it complains about bad meshes on stderr, a pipe that the
    trainer never reads; after 64 KB of complaints the child blocks in write and the trainer blocks in read
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, blocked_child
blame: child
twin: none
"""

import os
import signal
import struct
import subprocess
import sys
import time

import torch
from torch import nn

CONVERTER = r"""
import math, signal, struct, sys
signal.alarm(300)
for line in sys.stdin:
    seed, faces, broken = map(int, line.split())
    points = []
    for k in range(faces):
        t = seed * 0.37 + k * 0.11
        points += (math.sin(t), math.cos(1.7 * t), math.sin(0.3 * t + seed))
    for k in range(broken):
        print(f"warning: face {k} of mesh {seed} is degenerate, its normal is taken from a neighbour", file=sys.stderr)
    sys.stderr.flush()
    sys.stdout.buffer.write(struct.pack(f"<{len(points)}f", *points))
    sys.stdout.buffer.flush()
"""


class Converter:
    FACES = 256

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONVERTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def cloud(self, seed, broken=0):
        self.process.stdin.write(f"{seed} {self.FACES} {broken}\n".encode())
        self.process.stdin.flush()
        size = self.FACES * 3 * 4
        raw = self.process.stdout.read(size)
        if len(raw) != size:
            raise EOFError("the converter is gone")
        return torch.tensor(struct.unpack(f"<{self.FACES * 3}f", raw)).view(self.FACES, 3)


class PointNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Linear(128, classes)

    def forward(self, clouds):
        return self.head(self.local(clouds).amax(dim=1))


def scans(converter):
    """Clean models first, then the scanned part of the collection."""
    start, seed, announced = time.monotonic(), 0, False
    while True:
        scanned = time.monotonic() - start > 15
        if scanned and not announced:
            announced = True
            print("now the scanned meshes", flush=True)
            print("ONSET", flush=True)
        yield converter.cloud(seed, broken=60 if scanned else 0), seed % 10
        seed += 1


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    model, source = PointNet(), scans(Converter())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1_000_000):
        clouds, labels = zip(*(next(source) for _ in range(16)), strict=True)
        loss = nn.functional.cross_entropy(model(torch.stack(clouds)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"[{os.getpid()}] {step} {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
