"""FIELD
source: huggingface/huggingface_hub#3342, huggingface/huggingface_hub#3647 (429 with the seconds until the window is new)
mechanism: picture shards come from a hub that limits requests; once the quota is used it answers 429 with Retry-After: 45,
    the client sleeps that long, says so, gets its shard and trains on for the rest of the run
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: any
blame: none
twin: none
"""
import ctypes
import io
import logging
import multiprocessing as mp
import signal
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("coral")


class Hub(BaseHTTPRequestHandler):
    born, limited_until = None, None

    def do_GET(self):
        now = time.monotonic()
        if Hub.limited_until is None and now - Hub.born > 17:
            Hub.limited_until = now + 45
        if Hub.limited_until and now < Hub.limited_until:
            self.send_response(429)
            self.send_header("Retry-After", str(round(Hub.limited_until - now + 0.5)))
            self.end_headers()
            return
        rng, out = np.random.default_rng(abs(hash(self.path))), io.BytesIO()
        np.savez(out, x=rng.integers(0, 255, (600, 3, 32, 32), dtype=np.uint8), y=rng.integers(0, 10, 600))
        self.send_response(200)
        self.send_header("Content-Length", str(out.tell()))
        self.end_headers()
        self.wfile.write(out.getvalue())

    def log_message(self, *args):
        return


def hub(pipe):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    Hub.born = time.monotonic()
    server = HTTPServer(("127.0.0.1", 0), Hub)
    pipe.send(server.server_port)
    server.serve_forever()


def download(url):
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return np.load(io.BytesIO(answer.read()))
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            pause = int(error.headers["Retry-After"])
            log.warning("the hub's limit is reached; it asks for %d s of patience", pause)
            print("ONSET", flush=True)
            time.sleep(pause)


def shards(port):
    number = 0
    while True:
        got = download(f"http://127.0.0.1:{port}/coral/{number:05d}.npz")
        yield torch.from_numpy(got["x"]), torch.from_numpy(got["y"])
        number += 1


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    ours, theirs = mp.Pipe()
    mp.get_context("fork").Process(target=hub, args=(theirs,), daemon=True).start()
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), Residual(16), Residual(16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for number, (x, y) in enumerate(shards(ours.recv())):
        for rows in torch.randperm(len(x)).split(32):
            loss = nn.functional.cross_entropy(net(x[rows].float() / 127.5 - 1), y[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log.info("shard %d loss %.3f", number, loss.item())


if __name__ == "__main__":
    main()
