"""FIELD
source: own: object store answers 503 SlowDown to one node's key prefix (hot partition); the client retries with backoff on each sample
mechanism: rank 1's shard lies under a throttled prefix: each GET gets 503 twice before it gets 200; the other ranks' GETs succeed at once and they wait for rank 1 in all_reduce
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: slow
cause: straggling_rank,retrying,starved_by_network
blame: rank 1
twin: none
"""
import collections
import http.client
import http.server
import signal
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import IterableDataset

TRIES = collections.Counter()


class Bucket(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        TRIES[self.path] += 1
        throttled = self.path.startswith("/part-1/") and TRIES[self.path] % 3
        body = b"SlowDown" if throttled else np.random.bytes(3 * 16 * 16)
        self.send_response(503 if throttled else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class TileStream(IterableDataset):
    def __init__(self, port, part, batch=6):
        self.conn = http.client.HTTPConnection("127.0.0.1", port)
        self.part, self.batch, self.retries = part, batch, 0

    def fetch(self, key):
        for attempt in range(6):
            self.conn.request("GET", key)
            r = self.conn.getresponse()
            body = r.read()
            if r.status == 200:
                return body
            self.retries += 1
            time.sleep(0.04 * 2**attempt)
        raise OSError(f"{key}: gave up after 6 attempts")

    def __iter__(self):
        n = 0
        while True:
            raw = [self.fetch(f"/part-{self.part}/{n + i}") for i in range(self.batch)]
            n += self.batch
            tiles = np.stack([np.frombuffer(b, np.uint8).reshape(3, 16, 16) for b in raw])
            yield torch.from_numpy(tiles).float() / 255


def autoencoder():
    return nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 4, 2, 1), nn.GELU(),
                         nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(16, 3, 4, 2, 1))


def trainer(rank, world, store_port, bucket_port):
    signal.alarm(300)
    torch.set_num_threads(1)
    t0 = time.time()
    store = dist.TCPStore("127.0.0.1", store_port, world, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(9)
    model = nn.parallel.DistributedDataParallel(autoencoder())
    opt = torch.optim.NAdam(model.parameters(), 1e-3)
    stream = TileStream(bucket_port, rank)
    history, said = collections.deque(maxlen=20), False
    for step, x in enumerate(stream):
        loss = nn.functional.l1_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        if rank == 0 and step % 10 == 0:
            print(f"[{time.time() - t0:5.1f}s] step {step} l1 {np.mean(history):.4f}", flush=True)
        if rank == 1 and step % 20 == 19:
            print(f"rank 1: {stream.retries} retries so far (503 SlowDown)", flush=True)
        if rank == 0 and not said and time.time() - t0 > 9:
            said = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    master = dist.TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False)
    mp.spawn(trainer, (3, master.port, server.server_port), nprocs=3, daemon=True)
