"""FIELD
source: huggingface/datasets#7506 (429 Too Many Requests while a training run streams its shards)
mechanism: the mirror allows one shard per 2 s and answers 429 above that; the loader thread of the trainer backs off and asks again several times for every shard, and a shard lasts for two quick steps
needs: none
ranks: 1
onset: printed
state: slow
cause: retrying
blame: fetch_shard ()
twin: none
"""
import http.server
import io
import json
import logging
import multiprocessing as mp
import signal
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

log = logging.getLogger("mirror")


@dataclass
class Settings:
    bands: int = 6
    side: int = 32
    per_shard: int = 64
    batch: int = 32
    max_tries: int = 12


class Mirror(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gate = threading.Lock()
    next_free = 0.0

    def do_GET(self):
        with Mirror.gate:
            now = time.monotonic()
            allowed = now >= Mirror.next_free
            if allowed:
                Mirror.next_free = now + 2.0
        if not allowed:
            body = json.dumps({"error": "rate limited"}).encode()
            self.send_response(429)
        else:
            rng = np.random.default_rng(abs(hash(self.path)) % 2**31)
            buffer = io.BytesIO()
            np.savez(buffer, x=rng.normal(size=(64, 6, 32, 32)).astype("f4"), y=rng.integers(0, 8, 64))
            body = buffer.getvalue()
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def run_mirror(conn):
    signal.alarm(300)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    conn.send(server.server_address[1])
    server.serve_forever()


def fetch_shard(base, index, settings):
    delay = 0.1
    for attempt in range(settings.max_tries):
        try:
            with urllib.request.urlopen(f"{base}/scenes/{index:06d}.npz", timeout=20) as reply:
                blob = np.load(io.BytesIO(reply.read()))
                return torch.from_numpy(blob["x"]), torch.from_numpy(blob["y"])
        except urllib.error.HTTPError as error:
            log.debug("shard %d try %d: %s", index, attempt, error)
            time.sleep(delay)
            delay = min(delay * 1.7, 0.6)
    raise RuntimeError(f"shard {index} unavailable")


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = Settings()
    ours, theirs = mp.Pipe()
    mp.Process(target=run_mirror, args=(theirs,), daemon=True).start()
    base = f"http://127.0.0.1:{ours.recv()}"
    net = nn.Sequential(nn.Conv2d(settings.bands, 24, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(384, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    start, step, told = time.monotonic(), 0, False
    for index in range(100_000):
        images, labels = fetch_shard(base, index, settings)
        for at in range(0, settings.per_shard, settings.batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images[at : at + settings.batch]), labels[at : at + settings.batch])
            loss.backward()
            optimizer.step()
            step += 1
        if index % 3 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if not told and time.monotonic() - start > 10:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
