"""FIELD
source: own: ranker that learns from clicks as they come, over a Unix socket
mechanism: the shop's front end (a process that this one starts) sends clicks all the time at first, then, in the evening, in bursts with 20 to 35 s of silence between: the trainer waits for them in a select, as it should
needs: none
ranks: 1
onset: printed
state: healthy, busy
cause: any
blame: none
twin: none
"""
import json
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
import time

import torch
from torch import nn

ITEMS = 500


def front_end(path):
    signal.alarm(310)
    rng = random.Random(4)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.connect(path)

    def burst(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            shown = rng.sample(range(ITEMS), 10)
            sock.send(json.dumps({"shown": shown, "clicked": shown.index(min(shown))}).encode())
            time.sleep(rng.expovariate(400))

    burst(20)
    sock.send(json.dumps({"note": "evening"}).encode())
    while True:
        time.sleep(rng.uniform(20, 35))
        burst(rng.uniform(3, 6))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, 64)
        self.score = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, shown):
        return self.score(self.items(shown))[..., 0]


class OnlineTrainer:
    def __init__(self, sock, batch=32):
        self.sock, self.batch = sock, batch
        self.net = Ranker()
        self.opt = torch.optim.Adagrad(self.net.parameters(), 0.02)
        self.pending, self.updates = [], 0

    def on_readable(self):
        event = json.loads(self.sock.recv(65536))
        if "note" in event:
            print(event["note"], flush=True)
            print("ONSET", flush=True)
            return
        self.pending.append((event["shown"], event["clicked"]))
        if len(self.pending) == self.batch:
            self.update()

    def update(self):
        shown, clicked = (torch.tensor(part) for part in zip(*self.pending, strict=True))
        loss = nn.functional.cross_entropy(self.net(shown), clicked)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.pending.clear()
        self.updates += 1
        if self.updates % 50 == 0:
            print(f"{self.updates} updates, loss {loss.item():.3f}", flush=True)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "clicks")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(path)
        if os.fork() == 0:
            sock.close()
            try:
                front_end(path)
            except OSError:
                os._exit(0)
        trainer = OnlineTrainer(sock)
        selector = selectors.DefaultSelector()
        selector.register(sock, selectors.EVENT_READ, trainer.on_readable)
        while True:
            for key, _ in selector.select():
                key.data()


if __name__ == "__main__":
    sys.exit(main())
