"""FIELD
source: own (dataset mirrors that send a burst every twenty seconds; node-local rank 0 fetches, the others watch for the finished file)
mechanism: local rank 0 downloads the next shard in 192 KB bursts with pauses of some twenty seconds, rank 1 polls for the renamed file
needs: cpu
ranks: 2
onset: printed
state: busy
cause: downloading, waiting_on_work
blame: none
twin: none
"""
import http.server
import multiprocessing as mp
import os
import shutil
import signal
import tempfile
import time
import urllib.request

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)


class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        shard = int(self.path.rsplit("-", 1)[1])
        bursts, pause = (4, 0.1) if shard == 0 else (20, 19.5)
        self.send_response(200)
        self.send_header("Content-Length", str(bursts * 196_608))
        self.end_headers()
        for k in range(bursts):
            self.wfile.write(np.random.default_rng(k).standard_normal(49_152, dtype=np.float32).tobytes())
            self.wfile.flush()
            time.sleep(pause)

    def log_message(self, *args):
        pass


def serve(pipe):
    signal.alarm(890)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    pipe.send(server.server_port)
    server.serve_forever()


def fetch_shard(base, index, folder):
    path = os.path.join(folder, f"shard-{index}")
    if dist.get_rank() == 0:
        with urllib.request.urlopen(f"{base}/shard-{index}", timeout=120) as response, open(path + ".part", "wb") as out:
            shutil.copyfileobj(response, out, 65536)
        os.rename(path + ".part", path)
    else:
        while not os.path.exists(path):
            time.sleep(2)
    return torch.from_numpy(np.fromfile(path, dtype=np.float32).reshape(-1, 64).copy())


def train(model, opt, data, seconds):
    until = time.time() + seconds
    go = torch.ones(1)
    while go.item():
        x = data[torch.randint(0, len(data), (64,))]
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        go = torch.tensor([float(time.time() < until)])
        dist.all_reduce(go, op=dist.ReduceOp.MIN)
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    meta = [None, None]
    if rank == 0:
        ours, theirs = mp.Pipe()
        mirror = mp.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
        mirror.start()
        meta = [f"http://127.0.0.1:{ours.recv()}", tempfile.mkdtemp(prefix="shards_")]
    dist.broadcast_object_list(meta)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 64)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for index in range(2):
        if rank == 0 and index == 1:
            print("ONSET", flush=True)
        data = fetch_shard(*[meta[0], index, meta[1]])
        dist.barrier()
        loss = train(model, opt, data, 8)
        if rank == 0:
            print(f"shard {index} loss {loss:.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(meta[1])
        mirror.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
