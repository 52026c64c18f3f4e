"""FIELD
source: PaddlePaddle/PaddleNLP#2555 (Megatron-style index maps: rank 0 builds them for a quarter of an hour, the others wait)
mechanism: rank 0 builds the document, sample and shuffle index of the next data blend in Python, all other ranks wait at a barrier
needs: cpu
ranks: 3
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
SEQ = 512


def build_sample_idx(sizes, doc_idx, num_samples):
    sample_idx = np.zeros((num_samples + 1, 2), dtype=np.int32)
    doc, offset = 0, 0
    for s in range(1, num_samples + 1):
        remaining = SEQ + 1
        while remaining:
            length = int(sizes[doc_idx[doc]]) - offset
            if length >= remaining:
                offset += remaining - 1
                remaining = 0
            else:
                remaining -= length
                doc = (doc + 1) % len(doc_idx)
                offset = 0
        sample_idx[s] = doc, offset
    return sample_idx


def build_index_mappings(path, sizes, epochs, minutes):
    rng, started, parts = np.random.RandomState(1234), time.time(), []
    for epoch in range(epochs):
        doc_idx = np.arange(len(sizes), dtype=np.int32)
        rng.shuffle(doc_idx)
        parts.append(build_sample_idx(sizes, doc_idx, int(sizes.sum() - 1) // SEQ))
        if time.time() - started > 60 * minutes:
            break
    idx = np.concatenate(parts[-20:])
    rng.shuffle(idx)
    np.save(path, idx)


def train(model, opt, seconds):
    until, step = time.time() + seconds, 0
    stop = torch.zeros(1)
    while not stop.item():
        x = torch.randn(32, 64)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        stop = torch.tensor([float(time.time() > until)])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"{step} steps, loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    path = os.path.join(tempfile.gettempdir(), f"blend_indexmap_{os.environ['MASTER_PORT']}.npy")
    sizes = np.random.RandomState(7).randint(30, 900, size=60_000)
    train(model, opt, 8)
    if rank == 0:
        print(" > WARNING: could not find index map file, building the indices on rank 0 ...", flush=True)
        print("ONSET", flush=True)
        build_index_mappings(path, sizes, epochs=4000, minutes=6.5)
    dist.barrier()
    index = np.load(path, mmap_mode="r")
    train(model, opt, 10)
    dist.barrier()
    if rank == 0:
        print("samples", len(index), flush=True)
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
