"""FIELD
source: wandb/wandb#4568, wandb/wandb#805 ("Network error, entering retry loop", and the training goes on)
mechanism: the tracking server goes away; a thread of rank 0 retries for ever and warns each time, its queue drops the oldest
    rows; neither rank waits for it and the steps are as fast as before
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""

import collections
import http.client
import http.server
import json
import signal
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Rows(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


class Tracker:
    def __init__(self, port):
        self.port = port
        self.rows = collections.deque(maxlen=2000)
        threading.Thread(target=self._send, daemon=True, name="tracker").start()

    def log(self, row):
        self.rows.append(row)

    def _post(self, rows):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            link.request("POST", "/rows", json.dumps(rows))
            link.getresponse().read()
        finally:
            link.close()

    def _send(self):
        pause = 0.5
        while True:
            time.sleep(pause)
            rows = list(self.rows)
            if not rows:
                continue
            try:
                self._post(rows)
            except OSError as error:
                pause = min(pause * 1.5, 4.0)
                print(f"tracker: network error ({type(error).__name__}), entering retry loop", file=sys.stderr, flush=True)
            else:
                pause = 0.5
                self.rows.clear()


def run(rank, net, opt, rendezvous, server):
    signal.alarm(300)
    server.socket.close()  # the parent's
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{rendezvous}", rank=rank, world_size=2)
    tracker = Tracker(server.server_port) if rank == 0 else None
    net = nn.parallel.DistributedDataParallel(net)
    for step in range(10_000_000):
        x, y = torch.rand(32, 1, 28, 28), torch.randint(10, (32,))
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if tracker and step % 5 == 0:
            tracker.log({"step": step, "loss": loss.item()})
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    signal.alarm(300)
    server = http.server.HTTPServer(("127.0.0.1", 0), Rows)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                        nn.Linear(64, 10))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    ranks = mp.start_processes(run, args=(net, opt, port, server), nprocs=2, join=False, start_method="fork")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.sleep(18)
    server.shutdown()
    server.server_close()
    print("the tracking server is down for maintenance")
    print("ONSET", flush=True)
    while not ranks.join():
        pass


if __name__ == "__main__":
    main()
