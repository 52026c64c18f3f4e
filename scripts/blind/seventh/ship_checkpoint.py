"""FIELD
source: wandb/wandb#4441 (after each run the process is "stuck" for 15 to 20 minutes: a slow upload)
mechanism: every checkpoint goes to an object store in parts over HTTP; the first is small; then the optimizer state
    is included and the link is narrow (some 300 kB/s), so that one upload in the training thread takes minutes and
    bytes flow
needs: none
ranks: 1
onset: printed
state: busy
cause: checkpointing, waiting_on_work, downloading
blame: none
twin: none
"""
import hashlib
import http.client
import http.server
import io
import os
import signal
import time

import torch
from torch import nn

RATE = 300_000


class ObjectStore(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):  # noqa: N802
        left, digest = int(self.headers["Content-Length"]), hashlib.md5()
        while left:
            piece = self.rfile.read1(min(left, 32_768))
            if not piece:
                return
            digest.update(piece)
            left -= len(piece)
            time.sleep(len(piece) / RATE)
        self.send_response(200)
        self.send_header("ETag", digest.hexdigest())
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def start_store():
    httpd = http.server.HTTPServer(("127.0.0.1", 0), ObjectStore)
    pid = os.fork()
    if pid == 0:
        signal.alarm(300)
        httpd.serve_forever()
    httpd.socket.close()
    return httpd.server_address


class MultipartUpload:
    def __init__(self, address, key, part=8 << 20):
        self.address, self.key, self.part = address, key, part

    def send(self, blob):
        tags = []
        for number, at in enumerate(range(0, len(blob), self.part)):
            connection = http.client.HTTPConnection(*self.address, timeout=600)
            connection.request("PUT", f"/{self.key}?partNumber={number}", blob[at : at + self.part])
            response = connection.getresponse()
            response.read()
            tags.append(response.headers["ETag"])
            connection.close()
        return tags


def save(address, model, optimizer, step, full):
    buffer = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()} if full else {"head": model[-1].state_dict()}
    torch.save(state, buffer)
    size = len(buffer.getvalue()) / 1e6
    print(f"step {step}: uploading {size:.1f} MB", flush=True)
    if full:
        print("ONSET", flush=True)
    MultipartUpload(address, f"runs/7/step{step}.pt").send(buffer.getvalue())
    print(f"step {step}: uploaded", flush=True)


def main():
    signal.alarm(300)
    address = start_store()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 16))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    began, step, next_head = time.monotonic(), 0, 6
    while True:
        x = torch.randn(24, 512)
        loss = nn.functional.cross_entropy(model(x), x[:, :16].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        elapsed = time.monotonic() - began
        if elapsed > 20:
            save(address, model, optimizer, step, full=True)
            began, next_head = time.monotonic(), 6
        elif elapsed > next_head:
            next_head += 6
            save(address, model, optimizer, step, full=False)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
