"""FIELD
source: own: a correct two-stage pipeline with isend/irecv (the healthy form of pytorch/pytorch#172668)
mechanism: none: both stages compute in turn, with the usual bubble of 8 microbatches in flight; a metrics thread writes a CSV line each 2 s
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: healthy
cause: any
blame: none
twin: none
"""
import signal
import socket
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

MICRO, COUNT, SEQ, DIM = 4, 8, 48, 96


def conv_block():
    return nn.Sequential(nn.Conv1d(DIM, DIM, 7, padding=3), nn.GELU(), nn.Conv1d(DIM, DIM, 7, padding=3))


class Half(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.blocks = nn.ModuleList(conv_block() for _ in range(3))
        self.head = nn.Conv1d(DIM, 8, 1) if last else None

    def forward(self, x):
        for b in self.blocks:
            x = x + b(x)
        return x if self.head is None else self.head(x)


def reporter(path, stats):
    with open(path, "a", buffering=1) as f:
        while True:
            time.sleep(2)
            f.write(f"{time.time():.1f},{stats['step']},{stats['loss']:.5f}\n")


def make_batches(seed=3):
    g = torch.Generator().manual_seed(seed)
    while True:
        time.sleep(0.015)  # a chunk from the simulation archive
        x = torch.randn(MICRO * COUNT, DIM, SEQ, generator=g)
        yield x, x[:, :8].cumsum(-1).tanh()


def first_step(model, x):
    live, sends = [], []
    for mb in x.split(MICRO):
        h = model(mb)
        sends.append(dist.isend(h.detach().contiguous(), 1))
        live.append(h)
    grads = [torch.empty_like(h) for h in live]
    works = [dist.irecv(g, 1) for g in grads]
    for h, g, w in zip(live, grads, works, strict=True):
        w.wait()
        h.backward(g)
    for s in sends:
        s.wait()


def last_step(model, y):
    bufs = [torch.empty(MICRO, DIM, SEQ) for _ in range(COUNT)]
    works = [dist.irecv(b, 0) for b in bufs]
    total, sends = 0.0, []
    for buf, work, target in zip(bufs, works, y.split(MICRO), strict=True):
        work.wait()
        buf.requires_grad_()
        loss = nn.functional.mse_loss(model(buf), target) / COUNT
        loss.backward()
        sends.append(dist.isend(buf.grad, 0))
        total += loss.item()
    for s in sends:
        s.wait()
    return total


def stage(rank, port, folder):
    signal.alarm(300)
    torch.set_num_threads(1)
    start = time.monotonic()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = Half(last=rank == 1)
    opt = torch.optim.AdamW(model.parameters(), 5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5000)
    stats = {"step": 0, "loss": 0.0}
    if rank == 1:
        threading.Thread(target=reporter, args=(f"{folder}/loss.csv", stats), daemon=True).start()
    said = False
    for step, (x, y) in enumerate(make_batches()):
        opt.zero_grad()
        if rank == 0:
            first_step(model, x)
        else:
            stats.update(step=step, loss=last_step(model, y))
        opt.step()
        sched.step()
        if rank == 1 and step % 20 == 0:
            print(f"step {step} loss {stats['loss']:.4f}", flush=True)
        if rank == 1 and not said and time.monotonic() - start > 9:
            said = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    with tempfile.TemporaryDirectory() as tmp, socket.create_server(("127.0.0.1", 0)) as s:
        p = s.getsockname()[1]
        s.close()
        mp.spawn(stage, (p, tmp), nprocs=2, daemon=True)
