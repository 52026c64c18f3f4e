"""FIELD
source: own, after reports of 503 Slow Down from object stores
mechanism: the hub answers three of four requests with 503; the loader's client sleeps 0.4 s and asks again, for each batch and without end
needs: none
ranks: 1
onset: printed
state: slow
cause: retrying
blame: get_with_retry (presigned_retry.py)
twin: backoff_once
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

signal.alarm(300)
torch.set_num_threads(1)


def store(ready, strained_after):
    signal.alarm(300)
    begin = time.monotonic()
    body = np.random.default_rng(1).standard_normal(64 * 32).astype("float32").tobytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            strained = time.monotonic() - begin > strained_after
            if strained and random.random() < 0.75:
                self.send_error(503, "Slow Down")
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put(server.server_address[1])
    server.serve_forever()


def get_with_retry(url):
    while True:
        try:
            return urllib.request.urlopen(url, timeout=10).read()
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.4)


if __name__ == "__main__":
    ready = mp.Queue()
    mp.get_context("fork").Process(target=store, args=(ready, 6.0), daemon=True).start()
    url = f"http://127.0.0.1:{ready.get()}/batch"
    net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
    opt = torch.optim.Adam(net.parameters())
    begin, said = time.monotonic(), False
    for step in range(10**6):
        batch = torch.from_numpy(np.frombuffer(get_with_retry(url), dtype="float32").reshape(64, 32).copy())
        loss = (net(batch) - batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not said and time.monotonic() - begin > 6.5:
            print("ONSET", flush=True)
            said = True
        if step % 20 == 0:
            print("step", step, loss.item(), flush=True)
