"""FIELD
source: own (online learning from a live feed that is quiet between the departures of the night timetable)
mechanism: the learner takes a step for each record of a feed and has caught up whenever the feed is quiet; by day records come
    all the time, at night in bursts of 4 s each 18 to 26 s, and between them it waits in select, which is all it can do
needs: none
ranks: 1
onset: printed
state: healthy, busy
cause: any
blame: none
twin: none
"""
import ctypes
import json
import os
import random
import selectors
import signal
import socket
import time

import torch
from torch import nn


def feed(sock):
    """The stand-in for the operator's live feed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    rng, born, told = random.Random(12), time.monotonic(), False
    while True:
        night = time.monotonic() - born > 15
        if night:
            if not told:
                told = True
                print("ONSET", flush=True)
            time.sleep(rng.uniform(18, 26))
        until = time.monotonic() + 4
        while time.monotonic() < until:
            delay, line = rng.expovariate(1 / 90), rng.randrange(40)
            record = {"line": line, "stop": rng.randrange(25), "delay": delay, "next": 0.8 * delay + line + rng.gauss(0, 5)}
            sock.sendall(json.dumps(record).encode() + b"\n")
            time.sleep(0.012)


class Lines:
    """Turns what a non-blocking socket gives into records."""

    def __init__(self, sock, on_record, on_quiet):
        self.sock, self.on_record, self.on_quiet, self.rest = sock, on_record, on_quiet, b""
        sock.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(sock, selectors.EVENT_READ)

    def forever(self):
        while True:
            if not self.selector.select(timeout=10):
                self.on_quiet()
                continue
            received = self.sock.recv(65536)
            if not received:
                return
            *whole, self.rest = (self.rest + received).split(b"\n")
            for line in whole:
                self.on_record(json.loads(line))


def learner():
    lines, stops = nn.Embedding(40, 32), nn.Embedding(25, 32)
    body = nn.Sequential(nn.Linear(65, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1))
    everything = nn.ModuleList([lines, stops, body])
    optimizer = torch.optim.Adagrad(everything.parameters(), 0.01)
    window, count, error = [], 0, 0.0

    def on_record(record):
        nonlocal count, error
        window.append(record)
        del window[:-64]
        line = torch.tensor([r["line"] for r in window])
        stop = torch.tensor([r["stop"] for r in window])
        delay = torch.tensor([r["delay"] / 60 for r in window])[:, None]
        guess = body(torch.cat([lines(line), stops(stop), delay], 1))
        loss = nn.functional.huber_loss(guess.squeeze(1), torch.tensor([r["next"] / 60 for r in window]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count, error = count + 1, 0.99 * error + 0.01 * loss.item()
        if count % 200 == 0:
            print(f"{count} records learnt, running error {error:.3f}", flush=True)

    def on_quiet():
        print(f"caught up at {count} records; the feed is quiet", flush=True)

    return on_record, on_quiet


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    near, far = socket.socketpair()
    if os.fork() == 0:
        near.close()
        feed(far)
        os._exit(0)
    far.close()
    Lines(near, *learner()).forever()
