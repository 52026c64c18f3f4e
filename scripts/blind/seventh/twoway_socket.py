"""FIELD
source: own: a feature extractor in a child process, spoken to over a socketpair; both sides write before they read
mechanism: the trainer sends all crops of an image, then reads all answers; the child answers each crop at once; when
    larger crops are scheduled, both socket buffers are full and both sides are in sendall
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_network, blocked_child, stuck_worker
blame: any
twin: none
"""
import multiprocessing as mp
import signal
import socket
import struct
import sys
import time

import numpy as np
import torch
from torch import nn


def send_array(sock, array):
    raw = np.ascontiguousarray(array, dtype=np.float32).tobytes()
    sock.sendall(struct.pack("!II", *array.shape) + raw)


def receive_exactly(sock, count):
    out = bytearray()
    while len(out) < count:
        part = sock.recv(min(65536, count - len(out)))
        if not part:
            raise EOFError("the extractor has gone")
        out += part
    return bytes(out)


def receive_array(sock):
    rows, columns = struct.unpack("!II", receive_exactly(sock, 8))
    return np.frombuffer(receive_exactly(sock, rows * columns * 4), np.float32).reshape(rows, columns).copy()


def extractor(sock):
    signal.alarm(300)
    torch.set_num_threads(1)
    rng = np.random.default_rng(5)
    basis = {}
    while True:
        crop = receive_array(sock)
        if crop.shape[1] not in basis:
            basis[crop.shape[1]] = rng.standard_normal((crop.shape[1], crop.shape[1])).astype(np.float32) / 8
        send_array(sock, np.tanh(crop @ basis[crop.shape[1]]))


class CropSchedule:
    """Few and small crops first, as in progressive resizing."""

    sizes = ((0, 32, 4), (8, 48, 4), (16, 160, 24))

    def __init__(self):
        self.began, self.level = time.monotonic(), 0

    def current(self):
        elapsed = time.monotonic() - self.began
        level = max(i for i, (after, _, _) in enumerate(self.sizes) if elapsed >= after)
        if level != self.level:
            self.level = level
            print(f"crops: {self.sizes[level][1]} px, {self.sizes[level][2]} an image", flush=True)
            if level == len(self.sizes) - 1:
                print("ONSET", flush=True)
        return self.sizes[level][1:]


def crops(generator, size, count):
    for _ in range(count):
        yield generator.standard_normal((size, size)).astype(np.float32)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    ours, theirs = socket.socketpair()
    child = mp.get_context("fork").Process(target=extractor, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    head = nn.Sequential(nn.AdaptiveAvgPool1d(32), nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 1))
    pool = nn.AdaptiveAvgPool2d((32, 32))
    head(torch.zeros(1, 32, 32))
    optimizer = torch.optim.RMSprop(head.parameters(), 1e-4)
    schedule, generator, step = CropSchedule(), np.random.default_rng(1), 0
    while True:
        size, count = schedule.current()
        for crop in crops(generator, size, count):
            send_array(ours, crop)
        features = torch.stack([torch.from_numpy(receive_array(ours)) for _ in range(count)])
        scores = head(pool(features[:, None])[:, 0]).squeeze(1)
        loss = nn.functional.mse_loss(scores, features.mean((1, 2)) * 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.5f}", file=sys.stderr, flush=True)
        time.sleep(0.015)


if __name__ == "__main__":
    main()
