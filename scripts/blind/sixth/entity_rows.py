"""FIELD
source: alibaba/rtp-llm#1080 and smithy-lang/smithy-rs#4677, 40 ms per request because Nagle's algorithm meets delayed acknowledgements, rebuilt as a client of an embedding server
mechanism: while the curriculum stays at the head entities all rows are in the client's cache; when it reaches the tail, the training thread fetches twelve rows a step one by one,
    and each request, sent as header and body in two small writes without TCP_NODELAY, takes 40 ms
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_network,serial_loading,regressed
blame: none
twin: none
"""
import multiprocessing as mp
import random
import signal
import socket
import socketserver
import struct
import time
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

DIM, HEAD = 64, 300
ONE, FIRST = 1, 2


class Rows(socketserver.BaseRequestHandler):
    def handle(self):
        request = self.request
        while True:
            head = request.recv(8, socket.MSG_WAITALL)
            if len(head) < 8:
                return
            kind, size = struct.unpack("!II", head)
            body = request.recv(size, socket.MSG_WAITALL)
            keys = [int(body)] if kind == ONE else range(int(body))
            rows = [np.random.default_rng(key).normal(size=DIM).astype(np.float32) for key in keys]
            request.sendall(b"".join(row.tobytes() for row in rows))


def row_server(pipe):
    signal.alarm(310)
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Rows)
    pipe.send(server.server_address)
    server.serve_forever()


class RowClient:
    def __init__(self, address, capacity=512):
        self.sock = socket.create_connection(address)
        self.cache, self.capacity = OrderedDict(), capacity
        self.misses = 0

    def __getitem__(self, key):
        if key in self.cache:
            self.cache.move_to_end(key)
        else:
            self.misses += 1
            self.cache[key] = self._fetch(key)
            if len(self.cache) > self.capacity:
                self.cache.popitem(last=False)
        return self.cache[key]

    def _ask(self, kind, number, rows):
        body = str(number).encode()
        self.sock.send(struct.pack("!II", kind, len(body)))
        self.sock.send(body)
        return np.frombuffer(self.sock.recv(4 * DIM * rows, socket.MSG_WAITALL), np.float32).reshape(rows, DIM)

    def _fetch(self, key):
        return self._ask(ONE, key, 1)[0]

    def warm(self, n):
        self.cache.update(enumerate(self._ask(FIRST, n, n)))


class Linker(nn.Module):
    """Which entity is meant by the mention."""

    def __init__(self):
        super().__init__()
        self.mention = nn.Sequential(nn.Linear(DIM, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, DIM))

    def forward(self, mention, entities):
        return torch.einsum("bd,bed->be", self.mention(mention), entities)


class Curriculum:
    def __init__(self, head_seconds):
        self.until = time.monotonic() + head_seconds
        self.rng = random.Random(0)
        self.tail = False

    def candidates(self, n):
        if not self.tail and time.monotonic() > self.until:
            self.tail = True
            print("curriculum: tail entities", flush=True)
            print("ONSET", flush=True)
        if not self.tail:
            return [[self.rng.randrange(HEAD) for _ in range(4)] for _ in range(n)]
        keys = [self.rng.randrange(HEAD, 10_000_000) for _ in range(12)]
        return [self.rng.sample(keys, 4) for _ in range(n)]


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    ours, theirs = mp.Pipe()
    mp.Process(target=row_server, args=(theirs,), daemon=True).start()
    rows = RowClient(ours.recv())
    rows.warm(HEAD)
    net = Linker()
    opt = torch.optim.AdamW(net.parameters(), 3e-4)
    curriculum = Curriculum(20)
    for step in range(10**6):
        keys = curriculum.candidates(48)
        entities = torch.from_numpy(np.stack([[rows[k] for k in line] for line in keys]))
        mention = entities[:, 0] + 0.5 * torch.randn(48, DIM)
        loss = nn.functional.cross_entropy(net(mention, entities), torch.zeros(48, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} misses {rows.misses}", flush=True)


if __name__ == "__main__":
    main()
