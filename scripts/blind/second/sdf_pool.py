"""FIELD
source: mapillary/OpenSfM#190 and bpo-22393 (a worker of multiprocessing.Pool dies, map() never returns)
mechanism: a mesh record with a wrong offset makes the native copy in a pool worker of rank 0 read outside its buffer; the worker dies by SIGSEGV, the pool replaces it, its task is lost and map() waits for ever, while rank 1 waits in all_reduce
needs: cpu
ranks: 2
onset: printed
state: hung
cause: dead_worker, stalled_collective
blame: rank 0
twin: none
"""
import ctypes
import datetime
import multiprocessing as mp

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
HEADER = 16


def pack(seed, broken=False):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(600, 3)).astype(np.float32)
    head = np.array([len(points), HEADER + (1 << 42 if broken else 0)], dtype=np.int64)
    return head.tobytes() + points.tobytes()


def sample_distances(record):
    count, offset = np.frombuffer(record, dtype=np.int64, count=2)
    buffer = ctypes.create_string_buffer(record, len(record))
    raw = ctypes.string_at(ctypes.addressof(buffer) + int(offset), int(count) * 12)
    points = np.frombuffer(raw, dtype=np.float32).reshape(-1, 3)
    queries = np.random.default_rng(int(abs(points[0, 0]) * 1e6)).normal(size=(256, 3)).astype(np.float32)
    gaps = np.linalg.norm(queries[:, None] - points[None], axis=-1).min(1)
    return np.concatenate([queries, gaps[:, None]], axis=1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 128), nn.Softplus(), nn.Linear(128, 128), nn.Softplus(), nn.Linear(128, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    pool = mp.get_context("fork").Pool(2)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank = dist.get_rank()
    torch.manual_seed(2)
    field = Field()
    opt = torch.optim.Adam(field.parameters(), lr=1e-3)
    for round_ in range(500):
        meshes = [pack(10000 * rank + 40 * round_ + i, broken=(rank, round_, i) == (0, 7, 11)) for i in range(40)]
        if rank == 0 and round_ == 7:
            print("ONSET", flush=True)
        samples = torch.from_numpy(np.concatenate(pool.map(sample_distances, meshes, chunksize=4)))
        for rows in torch.randperm(len(samples)).split(512):
            loss = (field(samples[rows, :3]) - samples[rows, 3]).abs().mean()
            opt.zero_grad()
            loss.backward()
            for p in field.parameters():
                dist.all_reduce(p.grad)
                p.grad /= 2
            opt.step()
        if rank == 0:
            print(f"round {round_} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
