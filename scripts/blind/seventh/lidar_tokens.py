"""FIELD
source: own; a signed request is refused while the clock of the client is ahead of the clock of the service
mechanism: the trainer fetches each sweep over HTTP with a signed stamp; then its clock runs ahead, the service answers most
    requests with 401, the client backs off (0.3, 0.6, 1.2 s) and tries again until one is accepted, for each and every batch
needs: none
ranks: 1
onset: printed
state: slow
cause: retrying, starved_by_network
blame: none
twin: none
"""
import ctypes
import functools
import hashlib
import hmac
import http.client
import http.server
import multiprocessing
import os
import signal
import time

import numpy as np
import torch
from torch import nn

KEY = b"survey"


def sign(stamp):
    return hmac.new(KEY, str(stamp).encode(), hashlib.sha256).hexdigest()


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    refused = 0

    def do_GET(self):
        stamp = int(self.headers["X-Stamp"])
        early = stamp > time.time() + 30
        if self.headers["X-Signature"] != sign(stamp) or (early and Service.refused < 3):
            Service.refused += 1
            self.send_response(401)
            body = b"stamp is in the future"
        else:
            Service.refused = 0
            self.send_response(200)
            number = int(self.path.rsplit("/", 1)[1])
            body = np.random.default_rng(number).normal(size=(1024, 4)).astype(np.float32).tobytes()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(pipe):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    pipe.send(server.server_address[1])
    server.serve_forever()


def with_backoff(tries=6, first=0.3):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            delay = first
            for attempt in range(tries):
                try:
                    return function(*args)
                except PermissionError:
                    if attempt == tries - 1:
                        raise
                    time.sleep(delay)
                    delay *= 2

        return wrapper

    return decorate


class Client:
    def __init__(self, port):
        self.connection, self.ahead = http.client.HTTPConnection("127.0.0.1", port, timeout=20), 0

    @with_backoff()
    def sweep(self, number):
        stamp = int(time.time() + self.ahead)
        self.connection.request("GET", f"/sweeps/{number}", headers={"X-Stamp": str(stamp), "X-Signature": sign(stamp)})
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status == 401:
            raise PermissionError(body.decode())
        return torch.from_numpy(np.frombuffer(body, dtype=np.float32).reshape(1024, 4).copy())


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 256), nn.ReLU())
        self.scene = nn.Linear(256, 5)

    def forward(self, points):
        return self.scene(self.point(points).amax(-2))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True).start()
    client, net = Client(ours.recv()), PointNet()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    born, number = time.monotonic(), 0
    while True:
        if not client.ahead and time.monotonic() - born > 15:
            client.ahead = 90
            print("ONSET", flush=True)
        number += 1
        points = client.sweep(number)
        turned = torch.stack([points @ torch.linalg.qr(torch.randn(4, 4))[0] for _ in range(4)])
        loss = nn.functional.cross_entropy(net(turned), torch.full((4,), number % 5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % (200 if not client.ahead else 5) == 0:
            print(f"pid {os.getpid()} sweep {number} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
