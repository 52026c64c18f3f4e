"""FIELD
source: own: a ranker that is trained online: a handler thread queues clicks, the main thread trains when a group is full
mechanism: the queue's producer is slow but alive: clicks trickle in over HTTP from a child; every 15 to 25 s a group of
    32 is complete and the trainer makes some 3 s of steps on it and on a replay buffer, then blocks in queue.get again
needs: none
ranks: 1
onset: printed
state: healthy, busy, slow
cause: any
blame: none
twin: none
"""
import collections
import ctypes
import json
import logging
import multiprocessing as mp
import queue
import random
import signal
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="[%(levelname)1.1s %(asctime)s %(threadName)s] %(message)s")
log = logging.getLogger("ranker")
clicks = queue.Queue(maxsize=1000)


class Intake(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        clicks.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


def users(port, began):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    rng = random.Random(2)
    while True:
        body = {"user": [rng.gauss(0, 1) for _ in range(24)], "shown": [rng.randrange(5000) for _ in range(20)]}
        body["clicked"] = min(range(20), key=lambda i: body["shown"][i])
        request = urllib.request.Request(f"http://127.0.0.1:{port}/click", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass
        time.sleep(0.005 if time.time() - began < 11 else rng.uniform(0.4, 0.8))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(5000, 48)
        self.user = nn.Sequential(nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 48))

    def forward(self, user, shown):
        return (self.items(shown) @ self.user(user).unsqueeze(-1)).squeeze(-1)


class OnlineTrainer:
    def __init__(self, group=32, replay=4000):
        self.model = Ranker()
        self.opt = torch.optim.Adagrad(self.model.parameters(), 0.02)
        self.group, self.memory, self.steps = group, collections.deque(maxlen=replay), 0

    def collect(self):
        return [clicks.get() for _ in range(self.group)]

    def fit(self, fresh, seconds):
        until = time.monotonic() + seconds
        while True:
            rows = fresh + random.sample(self.memory, min(len(self.memory), 96))
            scores = self.model(
                torch.tensor([r["user"] for r in rows]), torch.tensor([r["shown"] for r in rows], dtype=torch.long)
            )
            loss = nn.functional.cross_entropy(scores, torch.tensor([r["clicked"] for r in rows]))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.steps += 1
            if time.monotonic() > until:
                self.memory.extend(fresh)
                return loss.item()


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Intake)
    began, announced = time.time(), False
    mp.get_context("fork").Process(target=users, args=(server.server_port, began), daemon=True).start()
    threading.Thread(target=server.serve_forever, name="intake", daemon=True).start()
    trainer, groups = OnlineTrainer(), 0
    while True:
        fresh = trainer.collect()
        loss = trainer.fit(fresh, 3 if announced else 0.1)
        groups += 1
        if announced or groups % 10 == 0:
            log.info("group %d step %d loss %.3f waiting %d", groups, trainer.steps, loss, clicks.qsize())
        if not announced and time.time() - began > 11:
            announced = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
