"""FIELD
source: own (rank 0 consolidates the optimizer state and writes it with xz, as some archival checkpoints are)
mechanism: rank 0 compresses the consolidated state with the best of several lzma filters and writes it for minutes, rank 1 waits at the barrier after the save
needs: cpu
ranks: 2
onset: printed
state: busy
cause: checkpointing, waiting_on_work
blame: none
twin: none
"""
import io
import lzma
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)


class Tower(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, 64, sparse=False)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids):
        return self.mlp(self.table(ids)).squeeze(1)


def pack(chunk, thorough):
    if not thorough:
        return lzma.compress(chunk, preset=0)
    layouts = [{"lc": 0, "lp": 2, "pb": 2}, {"lc": 3, "lp": 0, "pb": 2}, {"lc": 2, "lp": 2, "pb": 0}]
    chains = [[{"id": lzma.FILTER_LZMA2, "preset": 6, **kw}] for kw in layouts]
    chains += [[{"id": lzma.FILTER_DELTA, "dist": 4}, *chain] for chain in chains]
    return min((lzma.compress(chunk, filters=chain) for chain in chains), key=len)


def write_state(path, state):
    began = time.time()
    with open(path, "wb") as out:
        for name, tensor in state.items():
            buffer = io.BytesIO()
            torch.save({name: tensor}, buffer)
            view = memoryview(buffer.getvalue())
            for start in range(0, len(view), 1 << 22):
                out.write(pack(view[start:start + (1 << 22)], thorough=time.time() - began < 360))   # the slot is six minutes


def consolidate(model, opt):
    state = {f"model.{k}": v for k, v in model.module.state_dict().items()}
    for index, slots in opt.state_dict()["state"].items():
        state |= {f"opt.{index}.{k}": v for k, v in slots.items() if torch.is_tensor(v)}
    return state


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(Tower(180_000))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    path = os.path.join(tempfile.gettempdir(), f"state_{os.environ['MASTER_PORT']}.xz")
    for step in range(1, 81):
        ids = torch.randint(0, 180_000, (256, 24))
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), (ids.sum(1) % 2).float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 50:
            if rank == 0:
                print("ONSET", flush=True)
                write_state(path, consolidate(model, opt))
                print("saved", os.path.getsize(path) >> 20, "MiB", flush=True)
                os.remove(path)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
