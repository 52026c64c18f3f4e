"""FIELD
source: Mic92/python-mpd2#103 (write-write-read on a TCP connection without TCP_NODELAY: Nagle's algorithm meets delayed acknowledgements, 40 ms a request)
mechanism: each lookup sends its header and its key in two small writes; the second waits for the delayed acknowledgement of the first, so one embedding costs 40 ms and a batch more than a second
needs: cpu
ranks: 1
onset: printed
state: slow
cause: starved_by_network
blame: lookup (kv_embeddings.py)
twin: none
"""
import socket
import struct
import subprocess
import sys
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)

SERVER = r"""
import socket, struct
import numpy as np
table = np.random.default_rng(0).standard_normal((50000, 64)).astype("<f4")
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
link, _ = listener.accept()
def exactly(n):
    data = b""
    while len(data) < n:
        part = link.recv(n - len(data))
        if not part:
            raise SystemExit
        data += part
    return data
while True:
    (size,) = struct.unpack("<I", exactly(4))
    keys = np.frombuffer(exactly(size), dtype="<i8")
    link.sendall(table[keys].tobytes())
"""


class EmbeddingClient:
    def __init__(self, port):
        self.link = socket.create_connection(("127.0.0.1", port))

    def receive(self, n):
        parts = bytearray()
        while len(parts) < n:
            parts += self.link.recv(n - len(parts))
        return np.frombuffer(bytes(parts), dtype="<f4").reshape(-1, 64)

    def lookup(self, key):
        body = struct.pack("<q", int(key))
        self.link.sendall(struct.pack("<I", len(body)))
        self.link.sendall(body)
        return self.receive(256)

    def fetch(self, keys):
        return torch.from_numpy(np.concatenate([self.lookup(k) for k in keys]))


def main():
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    client = EmbeddingClient(int(server.stdout.readline()))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    head = {key: vec for key, vec in enumerate(np.random.default_rng(0).standard_normal((2000, 64)).astype(np.float32))}
    started, cold = time.time(), False
    step = 0
    while time.time() - started < 600:
        if not cold and time.time() - started > 10:
            cold = True
            print("ONSET", flush=True)
        if cold:
            x = client.fetch(np.random.randint(2000, 50000, 32))
        else:
            x = torch.from_numpy(np.stack([head[k] for k in np.random.randint(0, 2000, 32)]))
        loss = nn.functional.mse_loss(model(x), x.abs().mean(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if cold or step % 1000 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    server.terminate()


if __name__ == "__main__":
    main()
