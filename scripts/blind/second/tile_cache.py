"""FIELD
source: brooklyncentral/clocker#382 and awslabs/aws-c-common#1192 (a flock outlives close() because a forked child inherited the descriptor)
mechanism: a helper process is forked while the cache lock is held; the parent only closes its descriptor, the helper's copy keeps the flock, and the next flock of the parent waits for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, deadlocked_locks
blame: cache_lock (tile_cache.py)
twin: none
"""
import contextlib
import fcntl
import multiprocessing as mp
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


@contextlib.contextmanager
def cache_lock(root, announce=False):
    handle = open(root / ".lock", "w")
    if announce:
        print("ONSET", flush=True)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        handle.close()


def thumbnailer(root, jobs):
    while True:
        name = jobs.get()
        if name is None:
            break
        tile = np.load(root / name)
        np.save(root / ("thumb_" + name), tile[:, ::4, ::4])


class TileCache:
    def __init__(self, root):
        self.root = root
        self.jobs = mp.get_context("fork").Queue()
        self.helper = None

    def rebuild(self, generation):
        with cache_lock(self.root, announce=generation > 0):
            if self.helper is None:
                self.helper = mp.get_context("fork").Process(target=thumbnailer, args=(self.root, self.jobs), daemon=True)
                self.helper.start()
            rng = np.random.default_rng(generation)
            for i in range(8):
                name = f"g{generation}_{i}.npy"
                np.save(self.root / name, rng.random((64, 32, 32), dtype=np.float32))
                self.jobs.put(name)

    def tiles(self, generation, i):
        return torch.from_numpy(np.load(self.root / f"g{generation}_{i % 8}.npy"))


def main():
    cache = TileCache(Path(tempfile.mkdtemp(prefix="tiles_")))
    net = nn.Sequential(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1024))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for generation in range(50):
        cache.rebuild(generation)
        for i in range(1600):
            x = cache.tiles(generation, i)
            loss = nn.functional.mse_loss(net(x), x.flatten(1))
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"generation {generation} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
