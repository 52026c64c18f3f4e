"""FIELD
source: https://github.com/BLSQ/iaso/pull/1541, https://github.com/awslabs/mountpoint-s3/pull/743 and https://github.com/ssl-hep/ServiceX/pull/958 (503 Slow Down and exponential back-off)
mechanism: the object store answers most requests with 503 once a client is over its rate; the loader repeats each request with exponential back-off, so batches come only every few seconds
needs: cpu
ranks: 1
onset: printed
state: slow
cause: retrying, starved_by_network
blame: get_object (object_store.py)
twin: none
"""
import multiprocessing as mp
import random
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

BLOB = np.random.default_rng(0).standard_normal(8 * 256).astype(np.float32).tobytes()


class Bucket(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tokens, rate, stamp = 2400.0, 3.0, time.time()  # a burst allowance, then so many requests per second

    def do_GET(self):
        cls, now = Bucket, time.time()
        cls.tokens, cls.stamp = min(2400.0, cls.tokens + cls.rate * (now - cls.stamp)), now
        ok = cls.tokens >= 1
        cls.tokens -= 1 if ok else 0
        body = BLOB if ok else b"<Code>SlowDown</Code>"
        self.send_response(200 if ok else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve(port):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    port.value = server.server_address[1]
    server.serve_forever()


def get_object(url, attempts=12):
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(url, timeout=10) as r:
                return r.read()
        except urllib.error.HTTPError as exc:
            if exc.code != 503 or attempt == attempts - 1:
                raise
            time.sleep(min(4.0, 0.1 * 2 ** attempt) * random.uniform(0.5, 1.0))


class Remote(Dataset):
    def __init__(self, port, n):
        self.base, self.n = f"http://127.0.0.1:{port}/train/", n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.from_numpy(np.frombuffer(get_object(self.base + str(i)), dtype=np.float32).reshape(8, 256).copy())


def main(max_seconds=600):
    torch.set_num_threads(1)
    port = mp.Value("i", 0)
    mp.Process(target=serve, args=(port,), daemon=True).start()
    while not port.value:
        time.sleep(0.01)
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    start, told = time.time(), False
    loader = DataLoader(Remote(port.value, 100000), batch_size=8, num_workers=2, shuffle=True)
    wait = time.time()
    for step, x in enumerate(loader):
        waited = time.time() - wait
        if waited > 1.5 and not told and step > 150:
            told = True
            print("ONSET", flush=True)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or told:
            print(f"step {step} loss {loss.item():.3f} data {waited:.2f} s", flush=True)
        if time.time() - start > max_seconds:
            break
        wait = time.time()


if __name__ == "__main__":
    main()
