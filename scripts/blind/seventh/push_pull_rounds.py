"""FIELD
source: own: batched parameter server over torch.distributed.rpc; a round is applied when all trainers have pushed
mechanism: rank 0 serves parameters, ranks 1 and 2 push gradients and get the new parameters in a future that the
    server completes when both have pushed; rank 2 has fewer samples, leaves its loop and waits in rpc.shutdown, so
    that the round of rank 1 is never complete (the RPC timeout is two hours)
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: stalled_collective, blocked_network, blocked_rendezvous, unknown
blame: rank 2
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

TRAINERS = ("trainer1", "trainer2")
SAMPLES = {"trainer1": 40_000, "trainer2": 16_800}


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 3))


class Server:
    def __init__(self):
        self.model, self.lock = build(), threading.Lock()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.arrived, self.round = 0, torch.futures.Future()
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)

    @staticmethod
    @rpc.functions.async_execution
    def push(reference, grads):
        self = reference.local_value()
        with self.lock:
            for p, g in zip(self.model.parameters(), grads, strict=True):
                p.grad += g / len(TRAINERS)
            self.arrived += 1
            mine = self.round
            if self.arrived == len(TRAINERS):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self.arrived, self.round = 0, torch.futures.Future()
                mine.set_result([p.detach().clone() for p in self.model.parameters()])
        return mine


def data(name, batch=48):
    left, generator = SAMPLES[name], torch.Generator().manual_seed(len(name) + SAMPLES[name])
    while left > 0:
        n = min(batch, left)
        left -= n
        x = torch.randn(n, 40, generator=generator)
        yield x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def fit(reference, name):
    model, criterion = build(), nn.CrossEntropyLoss()
    for step, (x, y) in enumerate(data(name)):
        model.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        fresh = rpc.rpc_sync(reference.owner(), Server.push, args=(reference, [p.grad for p in model.parameters()]))
        with torch.no_grad():
            for p, value in zip(model.parameters(), fresh, strict=True):
                p.copy_(value)
        time.sleep(0.04)
        if step % 40 == 0:
            print(f"{name} step {step} loss {loss.item():.4f}", flush=True)
    print(f"{name}: all samples seen", flush=True)
    print("ONSET", flush=True)


def entry(rank, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    backend = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=7200, _transports=["uv"])
    name = "server" if rank == 0 else TRAINERS[rank - 1]
    rpc.init_rpc(name, rank=rank, world_size=3, rpc_backend_options=backend)
    if rank == 0:
        reference = rpc.RRef(Server())
        jobs = [rpc.rpc_async(t, fit, args=(reference, t), timeout=7200) for t in TRAINERS]
        torch.futures.wait_all(jobs)
    rpc.shutdown()


if __name__ == "__main__":
    signal.alarm(300)
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    free = s.getsockname()[1]
    s.close()
    mp.start_processes(entry, args=(free,), nprocs=3, start_method="fork")
