"""FIELD
source: jonatanjacobsson/ifcpipeline#28, pytorch/translate#285 (the parent joins the workers before it empties their queue)
mechanism: three ranks train, close the process group and put their out-of-fold predictions into a queue; the parent first
    joins them and only then reads; the feeder threads block in a full pipe and no rank can exit
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: hung_at_exit, blocked_pipe
blame: parent
twin: none
"""

import multiprocessing as mp
import os
import signal
import socket
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

WORLD = 3


def average(model):
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= WORLD
    for p in model.parameters():
        p.grad.copy_(flat[: p.numel()].view_as(p))
        flat = flat[p.numel() :]


def run_fold(rank, model, opt, port, results):
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    truth = torch.randn(40, 1)
    start, step, go = time.time(), 0, torch.ones(1)
    while go.item():
        x = torch.randn(256, 40)
        loss = nn.functional.mse_loss(model(x), x @ truth)
        opt.zero_grad()
        loss.backward()
        average(model)
        opt.step()
        step += 1
        if step % 100 == 0 and rank == 0:
            print(f"fold 0 step {step} mse {loss.item():.3f}", flush=True)
        go.fill_(float(time.time() - start < 16))
        dist.broadcast(go, 0)
    with torch.no_grad():
        predictions = model(torch.randn(20_000, 40)).numpy().astype(np.float64)
    dist.barrier()
    dist.destroy_process_group()
    results.put((rank, predictions))
    print(f"fold {rank} done", flush=True)
    if rank == 0:
        print("ONSET", flush=True)


def main():
    signal.alarm(300)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("fork")
    results = context.Queue()
    model = nn.Sequential(nn.Linear(40, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1))
    opt = torch.optim.SGD(model.parameters(), 0.02)
    folds = [context.Process(target=run_fold, args=(r, model, opt, port, results)) for r in range(WORLD)]
    for fold in folds:
        fold.start()
    for fold in folds:
        fold.join()
    stacked = dict(results.get() for _ in folds)
    print("mean prediction", np.mean([stacked[r].mean() for r in range(WORLD)]))


if __name__ == "__main__":
    main()
