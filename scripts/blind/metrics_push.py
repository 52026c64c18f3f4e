"""FIELD
source: https://github.com/mlflow/mlflow/issues/1760 (tracking server gets stuck) and https://github.com/opendatahub-io/agentic-ci/pull/90 (request without a timeout); the lock kept after an exception is own
mechanism: a request handler of the local tracking server fails between acquire() and release(); each later request waits for that lock in the server, and the training waits for the response without a timeout
needs: cpu
ranks: 1
onset: printed
state: hung
cause: blocked_network, blocked_child, deadlocked_locks
blame: push (metrics_push.py)
twin: none
"""
import json
import multiprocessing as mp
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.nn as nn

store_lock = threading.Lock()
series = {}


class Tracker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        store_lock.acquire()
        for key, value in body["metrics"].items():
            series.setdefault(key, []).append((body["step"], int(value * 1e6)))
        store_lock.release()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


def serve(port):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    port.value = server.server_address[1]
    server.serve_forever()


def push(url, step, metrics):
    data = json.dumps({"step": step, "metrics": metrics}).encode()
    request = urllib.request.Request(url + "/api/log", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            response.read()
    except (urllib.error.URLError, ConnectionError) as exc:
        print("metrics not logged at step", step, exc, flush=True)


def main():
    torch.set_num_threads(1)
    port = mp.Value("i", 0)
    mp.Process(target=serve, args=(port,), daemon=True).start()
    while not port.value:
        pass
    url = f"http://127.0.0.1:{port.value}"
    model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 256))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20000):
        x = torch.randn(96, 256)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            val = (model(x) - x).abs().mean().item()
            # the ratio has no finite value where the held-out batch is empty
            gap = loss.item() / val if step != 2400 else float("inf")
            if step == 2400:
                print("ONSET", flush=True)
            push(url, step, {"train/loss": loss.item(), "val/l1": val, "gap": gap})
        if step % 400 == 0:
            print("step", step, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
