"""FIELD
source: own
mechanism: a backbone's weights are fetched from a slow mirror, 300 kB a second for two minutes and a half, before fine-tuning starts
needs: none
ranks: 1
onset: printed
state: busy
cause: downloading
blame: none
twin: onto_bundle
"""
import hashlib
import http.client
import os
import signal
import subprocess
import sys
import tempfile

import torch
from tqdm import tqdm

MIRROR = """
import http.server, signal, time
signal.alarm(300)
class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', str(45_000_000))
        self.end_headers()
        for _ in range(1500):
            self.wfile.write(bytes(30_000))
            time.sleep(0.1)
    def log_message(self, *a): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Mirror)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Hub:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def pull(self, name, folder):
        self.connection.request("GET", "/" + name)
        answer = self.connection.getresponse()
        digest = hashlib.sha256()
        path = os.path.join(folder, name)
        with open(path, "wb") as out, tqdm(total=int(answer.headers["Content-Length"]), mininterval=5) as bar:
            while block := answer.read(65536):
                out.write(block)
                digest.update(block)
                bar.update(len(block))
        return path, digest.hexdigest()


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    mirror = subprocess.Popen([sys.executable, "-c", MIRROR], stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory() as folder:
        print("ONSET", flush=True)
        path, digest = Hub(int(mirror.stdout.readline())).pull("backbone.bin", folder)
        print("fetched", os.path.getsize(path), digest[:8], flush=True)
    head = torch.nn.Linear(512, 10)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    while True:
        loss = torch.nn.functional.cross_entropy(head(torch.randn(64, 512)), torch.randint(0, 10, (64,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
