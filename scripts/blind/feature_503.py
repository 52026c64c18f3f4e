"""FIELD
source: own (feature stores and object stores that answer 503 under load; clients back off as told)
mechanism: each batch is fetched from a server that refuses several times with 503; the client backs off exponentially, so a step comes every half minute
needs: cpu
ranks: 1
onset: printed
state: slow
cause: retrying, starved_by_network, serial_loading
blame: none
twin: none
"""
import http.server
import multiprocessing as mp
import random
import signal
import time
import urllib.error
import urllib.request

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


class FeatureStore(http.server.BaseHTTPRequestHandler):
    began, refused = time.time(), 0

    def do_GET(self):
        cls = FeatureStore
        if time.time() - cls.began > 10 and cls.refused < 4:
            cls.refused += 1
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        cls.refused = 0
        body = np.random.default_rng().standard_normal(64 * 40, dtype=np.float32).tobytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def store(pipe):
    signal.alarm(880)
    server = http.server.HTTPServer(("127.0.0.1", 0), FeatureStore)
    pipe.send(server.server_port)
    server.serve_forever()


class Client:
    def __init__(self, url):
        self.url, self.refusals = url, 0

    def get(self, attempts=9):
        for attempt in range(attempts):
            try:
                with urllib.request.urlopen(self.url, timeout=30) as r:
                    return torch.from_numpy(np.frombuffer(r.read(), dtype=np.float32).reshape(64, 40).copy())
            except urllib.error.HTTPError as e:
                if e.code != 503:
                    raise
                self.refusals += 1
                if self.refusals == 1:
                    print("ONSET", flush=True)
                time.sleep(2 ** (attempt + 1) + random.random())
        raise RuntimeError("feature store not available")


def main():
    ours, theirs = mp.Pipe()
    server = mp.get_context("spawn").Process(target=store, args=(theirs,), daemon=True)
    server.start()
    client = Client(f"http://127.0.0.1:{ours.recv()}/features?rows=64")
    model = nn.Sequential(nn.Linear(40, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    began, step = time.time(), 0
    while time.time() - began < 460:
        x = client.get()
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if client.refusals or step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    server.terminate()


if __name__ == "__main__":
    main()
