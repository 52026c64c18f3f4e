"""FIELD
source: own (pretrained weights from a slow mirror)
mechanism: between two stages the weights of a teacher are fetched at some 500 KB/s from a mirror, with a progress bar, in chunks of 8 KB; then training goes on
needs: none
ranks: 1
onset: printed
state: busy
cause: downloading
blame: none
twin: pages_pool
"""

import http.server
import multiprocessing as mp
import os
import signal
import tempfile
import time
import urllib.request

import torch
from tqdm import tqdm

signal.alarm(300)
torch.set_num_threads(1)
SIZE = 80_000_000


def mirror(ready):
    signal.alarm(300)
    block = os.urandom(25_000)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(SIZE))
            self.end_headers()
            for _ in range(SIZE // len(block)):
                self.wfile.write(block)
                time.sleep(0.05)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put(server.server_address[1])
    server.serve_forever()


def download(url, path):
    with urllib.request.urlopen(url) as answer, open(path, "wb") as file:
        with tqdm(total=int(answer.headers["Content-Length"]), unit="B", unit_scale=True) as bar:
            while chunk := answer.read(8192):
                file.write(chunk)
                bar.update(len(chunk))


if __name__ == "__main__":
    ready = mp.Queue()
    mp.get_context("fork").Process(target=mirror, args=(ready,), daemon=True).start()
    port = ready.get()
    student = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
    opt = torch.optim.Adam(student.parameters())
    for stage in range(10**6):
        for step in range(1500):
            x = torch.randn(64, 128)
            loss = (student(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("stage", stage, "loss", loss.item(), flush=True)
        if stage == 1:
            print("ONSET", flush=True)
            download(
                f"http://127.0.0.1:{port}/teacher.safetensors", os.path.join(tempfile.mkdtemp(), "teacher.safetensors")
            )
