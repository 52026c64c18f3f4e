"""FIELD
source: facebookresearch/pytext#585 (workers that stop early leave worker 0 stuck); isi-nlp/rtg#11
mechanism: early stopping is decided per rank on the local validation loss; rank 1 stops and polls a shared folder for the done markers of the others, which wait for it in DDP's all_reduce
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: stalled_collective,waiting_for_file
blame: rank 1
twin: none
"""
import argparse
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

PATIENCE = {0: 1000, 1: 3, 2: 1000}  # per region, as its analysts asked


def make_shard(rank, n=1600):
    g = torch.Generator().manual_seed(10 + rank)
    x = torch.randn(n, 32, generator=g)
    noise = 6.0 if rank == 1 else 0.1  # the shard of one region is mostly label noise
    y = (x[:, :4].sum(1) + noise * torch.randn(n, generator=g) > 0).float()
    return x, y


def early_stopping(patience, min_epochs):
    best, bad = float("inf"), 0

    def should_stop(epoch, loss):
        nonlocal best, bad
        if loss < best - 1e-5:
            best, bad = loss, 0
        elif epoch >= min_epochs:
            bad += 1
        return bad >= patience

    return should_stop


def csv_writer(path):
    rows = queue.Queue()

    def run():
        with open(path, "w") as f:
            while True:
                f.write(",".join(map(str, rows.get())) + "\n")
                f.flush()

    threading.Thread(target=run, daemon=True, name="csv").start()
    return rows.put


def wait_for_peers(out, world):
    """All ranks have written their predictions: only then merge them."""
    while len(list(out.glob("rank*.done"))) < world:
        time.sleep(1.0)


def worker(args):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    out = pathlib.Path(args.out)
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    x, y = make_shard(rank)
    xv, yv = x[-400:], y[-400:]
    log, stop = csv_writer(out / f"log{rank}.csv"), early_stopping(PATIENCE[rank], 18)
    for epoch in range(5000):
        for i in torch.randperm(1200).split(60):
            time.sleep(0.015)  # feature store look-up
            loss = F.binary_cross_entropy_with_logits(model(x[i]).squeeze(1), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            val = F.binary_cross_entropy_with_logits(model.module(xv).squeeze(1), yv).item()
        log((epoch, loss.item(), val))
        if rank == 0:
            print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f}", flush=True)
        if stop(epoch, val):
            print(f"[rank {rank}] early stop after epoch {epoch}", flush=True)
            print("ONSET", flush=True)
            break
    torch.save(model.module(xv), out / f"pred{rank}.pt")
    (out / f"rank{rank}.done").touch()
    wait_for_peers(out, world)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    p = argparse.ArgumentParser()
    p.add_argument("--out")
    a = p.parse_args()
    if "RANK" in os.environ:
        worker(a)
        sys.exit()
    with socket.socket() as s, tempfile.TemporaryDirectory() as tmp:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        procs = [subprocess.Popen([sys.executable, __file__, "--out", tmp],
                                  env={**os.environ, "RANK": str(r), "WORLD_SIZE": "3",
                                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
                 for r in range(3)]
        for proc in procs:
            proc.wait()
