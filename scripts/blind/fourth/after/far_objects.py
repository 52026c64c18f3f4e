"""FIELD
source: own (each sample is an object in a bucket of another region)
mechanism: two loader workers fetch every sample by HTTP, and each answer takes 150 ms
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_network
blame: __getitem__ (far_objects.py)
twin: none
"""

import http.server
import multiprocessing as mp
import signal
import time
import urllib.request

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def bucket(ready):
    signal.alarm(300)
    body = np.zeros(256, "float32").tobytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(0.15)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put(server.server_address[1])
    server.serve_forever()


class Objects(Dataset):
    def __init__(self, port):
        self.port = port

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{index}") as answer:
            return torch.from_numpy(np.frombuffer(answer.read(), dtype="float32").copy())


if __name__ == "__main__":
    signal.alarm(300)
    ready = mp.Queue()
    mp.get_context("fork").Process(target=bucket, args=(ready,), daemon=True).start()
    net = torch.nn.Linear(256, 256)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, x in enumerate(DataLoader(Objects(ready.get()), batch_size=8, num_workers=2)):
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 5:
            print("ONSET", flush=True)
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
