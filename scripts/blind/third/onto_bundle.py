"""FIELD
source: https://github.com/bio-ontology-research-group/mowl/issues/149
mechanism: between two curricula a bundle is fetched without a timeout; the server sends the headers and a tenth of the body, and then nothing, with the connection open
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_network
blame: _download (reads), fetch_bundle (calls it)
twin: none
"""
import http.server
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import torch

SERVER = """
import http.server, signal, sys, time
signal.alarm(300)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', '8000000')
        self.end_headers()
        whole = 'small' in self.path
        self.wfile.write(b'a' * (8000000 if whole else 800000))
        self.wfile.flush()
        if not whole:
            time.sleep(290)
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class RemoteDataset:
    def __init__(self, url, folder):
        self.url, self.folder = url, folder

    def _download(self, name):
        with urllib.request.urlopen(f"{self.url}/{name}") as answer, open(os.path.join(self.folder, name), "wb") as out:
            shutil.copyfileobj(answer, out)

    def fetch_bundle(self, name):
        self._download(name)
        return os.path.getsize(os.path.join(self.folder, name))


def embed(model, optimizer, steps):
    for step in range(steps):
        heads, tails = torch.randint(0, 2000, (2, 4096))
        loss = (model(heads) - model(tails)).norm(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} margin {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    data = RemoteDataset(f"http://127.0.0.1:{server.stdout.readline().strip()}", tempfile.mkdtemp())
    data.fetch_bundle("ppi-small.bin")
    model = torch.nn.Embedding(2000, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    embed(model, optimizer, 800)
    print("ONSET", flush=True)
    data.fetch_bundle("ppi-full.bin")
    embed(model, optimizer, 10**6)
