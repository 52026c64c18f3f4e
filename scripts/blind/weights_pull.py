"""FIELD
source: https://github.com/3dem/model-angelo/issues/31 and https://github.com/PaddlePaddle/Knover/issues/12 (weights come at 20 to 300 KB/s from a limited server)
mechanism: after a warm-up the teacher's weights are downloaded from a mirror that limits each client to 256 KiB a second; bytes arrive steadily and the training goes on when the file is complete
needs: cpu
ranks: 1
onset: printed
state: busy
cause: downloading
blame: none
twin: none
"""
import hashlib
import multiprocessing as mp
import os
import tempfile
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.nn as nn

SIZE, RATE = 105 << 20, 256 << 10


class Mirror(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        start, sent, block = time.monotonic(), 0, os.urandom(16 << 10)
        while sent < SIZE:
            self.wfile.write(block)
            sent += len(block)
            ahead = sent / RATE - (time.monotonic() - start)
            if ahead > 0:
                time.sleep(ahead)

    def log_message(self, *args):
        pass


def serve(port):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    port.value = server.server_address[1]
    server.serve_forever()


def download(url, path):
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=30) as r, open(path, "wb") as f:
        while chunk := r.read(64 << 10):
            f.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def fit(model, teacher, opt, steps):
    for _ in range(steps):
        x = torch.randn(64, 320)
        target = x if teacher is None else teacher(x)
        loss = (model(x) - target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    port = mp.Value("i", 0)
    mp.Process(target=serve, args=(port,), daemon=True).start()
    model = nn.Sequential(nn.Linear(320, 960), nn.ReLU(), nn.Linear(960, 320))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for k in range(5):
        print("warm-up", k, fit(model, None, opt, 250), flush=True)
    path = os.path.join(tempfile.mkdtemp(prefix="hub_"), "teacher.bin")
    print("ONSET", flush=True)
    print("teacher", download(f"http://127.0.0.1:{port.value}/teacher.bin", path)[:12], flush=True)
    teacher = nn.Linear(320, 320).requires_grad_(False)
    for k in range(5):
        print("distil", k, fit(model, teacher, opt, 250), flush=True)
    os.remove(path)


if __name__ == "__main__":
    main()
