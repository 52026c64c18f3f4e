"""FIELD
source: own (an HTTP client without a time-out, as the defaults of urllib and requests are)
mechanism: a thread pool fetches the next sixteen pages by HTTP without a time-out; the server has gone silent on all connections, and the training thread waits in as_completed
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_network
blame: fetch_page (pages_pool.py), pages (pages_pool.py)
twin: none
"""

import concurrent.futures
import http.server
import multiprocessing as mp
import signal
import threading
import time
import urllib.request

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)


def hub(ready, silent_after):
    signal.alarm(300)
    begin = time.monotonic()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if time.monotonic() - begin > silent_after:
                threading.Event().wait()
            body = np.random.default_rng().standard_normal(4096).astype("float32").tobytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put(server.server_address[1])
    server.serve_forever()


def fetch_page(port, number):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/rows?offset={number}") as answer:
        return np.frombuffer(answer.read(), dtype="float32")


def pages(port):
    number = 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        while True:
            wanted = [pool.submit(fetch_page, port, number + i) for i in range(16)]
            number += 16
            for done in concurrent.futures.as_completed(wanted):
                yield torch.from_numpy(done.result().copy()).view(64, 64)


if __name__ == "__main__":
    ready = mp.Queue()
    mp.get_context("fork").Process(target=hub, args=(ready, 9.0), daemon=True).start()
    port = ready.get()
    threading.Timer(9.2, print, ("ONSET",), {"flush": True}).start()
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for step, batch in enumerate(pages(port)):
        loss = (net(batch) - batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 64 == 0:
            print("step", step, loss.item(), flush=True)
