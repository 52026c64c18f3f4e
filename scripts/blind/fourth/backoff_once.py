"""FIELD
source: own (exponential back-off of a registry's client: 5, 10, 20 and 40 seconds, and then it works)
mechanism: between two phases the evaluation set is requested; the registry answers 503 four times, the client waits 5, 10, 20 and 40 s, then gets it and training goes on
needs: none
ranks: 1
onset: printed
state: busy, slow, healthy
cause: any
blame: none
twin: presigned_retry
"""

import http.server
import multiprocessing as mp
import signal
import time
import urllib.error
import urllib.request

import torch

signal.alarm(300)
torch.set_num_threads(1)


def registry(ready):
    signal.alarm(300)
    refused = 0

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            nonlocal refused
            if refused < 4:
                refused += 1
                self.send_error(503)
                return
            refused = 0
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"done")

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put(server.server_address[1])
    server.serve_forever()


def fetch(url, tries=8):
    for attempt in range(tries):
        try:
            return urllib.request.urlopen(url).read()
        except urllib.error.HTTPError as error:
            wait = 5 * 2**attempt
            print(f"{error}; trying again in {wait} s", flush=True)
            time.sleep(wait)
    raise RuntimeError("gave up")


if __name__ == "__main__":
    ready = mp.Queue()
    mp.get_context("fork").Process(target=registry, args=(ready,), daemon=True).start()
    url = f"http://127.0.0.1:{ready.get()}/evalset"
    net = torch.nn.Sequential(torch.nn.Linear(96, 192), torch.nn.ReLU(), torch.nn.Linear(192, 96))
    opt = torch.optim.Adam(net.parameters())
    phase = 0
    while True:
        end = time.monotonic() + 8
        while time.monotonic() < end:
            x = torch.randn(128, 96)
            loss = (net(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("phase", phase, "loss", loss.item(), flush=True)
        if phase == 0:
            print("ONSET", flush=True)
        fetch(url)
        phase += 1
