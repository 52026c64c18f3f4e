"""FIELD
source: https://github.com/python/cpython/issues/96062 and https://github.com/yumorishita/LiCSBAS2/pull/164 (Pool.map waits forever for the task of a killed worker)
mechanism: the kernel kills a Pool worker at its CPU limit in the middle of a task; the pool starts another worker, but the lost task is never done again and map() waits for its result for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: dead_worker, deadlocked_locks, unknown
blame: mine (mining_pool.py)
twin: none
"""
import multiprocessing as mp
import resource

import numpy as np
import torch
import torch.nn as nn


def limit_cpu():
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (3, 3))


def hardest(chunk):
    """Greedy farthest-pair search inside one chunk of embeddings."""
    best, pair = -1.0, (0, 0)
    for i in range(len(chunk)):
        d = np.square(chunk[i + 1:] - chunk[i]).sum(1)
        if len(d) and d.max() > best:
            best, pair = float(d.max()), (i, i + 1 + int(d.argmax()))
    return pair


def mine(pool, emb, sizes):
    chunks, start = [], 0
    for n in sizes:
        chunks.append(np.resize(emb[start:start + n], (n, emb.shape[1])))
        start = (start + n) % len(emb)
    return pool.map(hardest, chunks, chunksize=1)


def main():
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    data = torch.randn(4096, 64)
    plan = [[256] * 8, [256] * 8, [512] * 6, [256, 256, 60000, 256]]
    pool = mp.Pool(2, initializer=limit_cpu)
    for epoch, sizes in enumerate(plan):
        if max(sizes) > 1000:
            print("ONSET", flush=True)
        with torch.no_grad():
            pairs = mine(pool, net(data).numpy(), sizes)
        for step in range(900):
            a = data[torch.randint(0, 4096, (256,))]
            za, zb = net(a), net(a + 0.1 * torch.randn_like(a))
            far = data[[p[1] for p in pairs]]
            loss = nn.functional.triplet_margin_loss(za[: len(far)], zb[: len(far)], net(far)) + (za - zb).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f} mined {len(pairs)}", flush=True)
    pool.close()
    pool.join()


if __name__ == "__main__":
    main()
