"""FIELD
source: own
mechanism: a hub limits the rate: it answers 429 with Retry-After: 40, the client waits as asked and then gets its next shard; three such waits stand between two epochs
needs: none
ranks: 1
onset: printed
state: busy, slow, inconclusive
cause: any
blame: none
twin: presigned_urls
"""
import http.server
import signal
import threading
import time
import urllib.error
import urllib.request

import torch

signal.alarm(300)
torch.set_num_threads(1)


class LimitedHub(http.server.BaseHTTPRequestHandler):
    asked = {}

    def do_GET(self):
        number = int(self.path.rsplit("/", 1)[1])
        first = self.asked.setdefault(number, time.monotonic())
        if number >= 8 and time.monotonic() - first < 39:
            self.send_response(429)
            self.send_header("Retry-After", "40")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = bytes(400_000)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def pull_shard(base, number):
    while True:
        try:
            with urllib.request.urlopen(f"{base}/shard/{number}") as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            wait = float(error.headers["Retry-After"])
            print(f"rate limited, waiting {wait:.0f} s as asked", flush=True)
            time.sleep(wait)


hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), LimitedHub)
threading.Thread(target=hub.serve_forever, daemon=True).start()
model = torch.nn.Linear(1000, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(12):
    if number == 8:
        print("ONSET", flush=True)
    data = torch.frombuffer(bytearray(pull_shard(f"http://127.0.0.1:{hub.server_port}", number)), dtype=torch.float32)
    for _ in range(60):
        rows = data.view(100, 1000) + torch.randn(100, 1000)
        loss = torch.nn.functional.cross_entropy(model(rows), torch.randint(0, 10, (100,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("shard", number, loss.item(), flush=True)
