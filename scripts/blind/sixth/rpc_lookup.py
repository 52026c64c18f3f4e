"""FIELD
source: pytorch/pytorch#26362, nested RPC calls use up the thread pool of the callee, rebuilt with torch.distributed.rpc and an embedding server
mechanism: each of 8 concurrent encode() calls on the server calls lookup() on the same server when a row is cold; once the hot set expires, all four
    threads of the server's pool hold an encode() that waits for a lookup(), and no thread is left to run a lookup(); the trainer waits for its futures
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: deadlocked_locks,blocked_network,stalled_collective,unknown
blame: none
twin: none
"""
import os
import signal
import socket
import threading
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn

ROWS, DIM, MICRO = 4000, 32, 8

table = None
hot: dict[int, torch.Tensor] = {}
guard = threading.Lock()


def load_table():
    global table
    table = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0)) * 0.1
    for row in range(0, ROWS, 2):
        hot[row] = table[row]
    return len(hot)


def lookup(rows):
    time.sleep(0.002)  # the cold tier
    return table[torch.tensor(rows)]


def expire():
    with guard:
        hot.clear()


def encode(rows):
    with guard:
        found = {r: hot[r] for r in rows if r in hot}
    cold = [r for r in rows if r not in found]
    if cold:
        # the cold tier may live on another server one day, hence a call
        fresh = rpc.rpc_sync("rows", lookup, args=(cold,))
        found.update(zip(cold, fresh, strict=True))
        with guard:
            hot.update(found)
    return torch.stack([found[r] for r in rows])


def apply_grads(rows, grad):
    table.index_add_(0, torch.tensor(rows), grad, alpha=-0.05)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))

    def forward(self, x):
        return self.net(x)


def train():
    head = Head()
    opt = torch.optim.Adam(head.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1)
    print("hot rows:", rpc.rpc_sync("rows", load_table), flush=True)
    begin, step = time.monotonic(), 0
    expired = False
    while True:
        if not expired and time.monotonic() - begin > 18:
            rpc.rpc_sync("rows", expire)
            expired = True
            print("hot set expired, refilling on demand", flush=True)
            print("ONSET", flush=True)
        picks = [(torch.randint(0, ROWS // 2, (48,), generator=gen) * 2).tolist() for _ in range(MICRO)]
        futures = [rpc.rpc_async("rows", encode, args=(p,)) for p in picks]
        opt.zero_grad()
        total = 0.0
        for rows, future in zip(picks, futures, strict=True):
            x = future.wait().requires_grad_()
            y = torch.tensor(rows) % 5
            loss = nn.functional.cross_entropy(head(x), y)
            loss.backward()
            total += loss.item()
            rpc.rpc_async("rows", apply_grads, args=(rows, x.grad))
        opt.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {total / MICRO:.4f}", flush=True)


def run(rank, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4, rpc_timeout=86400, init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(["trainer", "rows"][rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    mp.start_processes(run, (port,), nprocs=2, daemon=True, start_method="fork")
