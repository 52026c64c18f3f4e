"""FIELD
source: https://github.com/apache/texera/issues/5718
mechanism: the fetch of the next shard is answered with 503 for ever, and the helper tries again every second without a limit
needs: none
ranks: 1
onset: printed
state: slow, hung
cause: retrying
blame: read_file (tries again), get_presigned_url (fails), with_retry (sleeps)
twin: none
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
broken = threading.Event()


class FileService(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if broken.is_set():
            self.send_error(503, "file service unavailable")
            return
        body = torch.randn(256, 64).numpy().tobytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def get_presigned_url(base, number):
    with urllib.request.urlopen(f"{base}/shard/{number}", timeout=10) as answer:
        return answer.read()


def with_retry(call, *arguments):
    while True:
        try:
            return call(*arguments)
        except urllib.error.HTTPError as error:
            print("retrying after", error, flush=True)
            time.sleep(1.0)


def read_file(base, number):
    return torch.frombuffer(bytearray(with_retry(get_presigned_url, base, number)), dtype=torch.float32).view(256, 64)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FileService)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for shard in range(10**6):
    if shard == 60:
        broken.set()
        print("ONSET", flush=True)
    data = read_file(base, shard)
    for _ in range(20):
        loss = (model(data) - data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("shard", shard, loss.item(), flush=True)
