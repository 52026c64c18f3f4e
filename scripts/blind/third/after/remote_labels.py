"""FIELD
source: own
mechanism: rank 0 asks a label service over HTTP once in each step, which takes 200 ms; rank 1 has its labels at hand
needs: none
ranks: 2
onset: printed
state: slow
cause: straggling_rank, starved_by_network
blame: rank 0, ask_labels (asks)
twin: barrier_download
"""
import http.server
import json
import signal
import threading
import time
import urllib.request

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Labels(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.2)
        body = json.dumps([i % 10 for i in range(640)]).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def ask_labels(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/labels") as answer:
        return torch.tensor(json.loads(answer.read())[:64])


signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, port = dist.get_rank(), 0
if rank == 0:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Labels)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
model = DistributedDataParallel(torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters())
for step in range(10**6):
    y = ask_labels(port) if rank == 0 else torch.randint(0, 10, (64,))
    loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 128)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 10 and rank == 0:
        print("ONSET", flush=True)
