"""FIELD
source: https://github.com/MagnaCapax/PMSS/issues/663 and https://github.com/tox-dev/filelock/issues/634 (a flock lives on in a child that inherited the descriptor)
mechanism: a helper process forked while the cache lock was held keeps the lock's open file description, so the lock outlives close() in the parent and the next flock() blocks for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, deadlocked_locks
blame: locked (feature_cache.py)
twin: none
"""
import contextlib
import fcntl
import multiprocessing as mp
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn


@contextlib.contextmanager
def locked(path):
    f = open(path, "w")
    fcntl.flock(f, fcntl.LOCK_EX)
    try:
        yield
    finally:
        f.close()


def serve_index(conn):
    vectors = np.random.default_rng(1).standard_normal((2000, 32)).astype(np.float32)
    while True:
        q = conn.recv()
        conn.send(vectors[np.argmax(vectors @ q.T, axis=0)])


class FeatureCache:
    def __init__(self, root):
        self.root, self.conn = root, None

    def refresh(self, epoch):
        with locked(os.path.join(self.root, ".lock")):
            if self.conn is None and epoch >= 2:         # neighbours are used from the third epoch on
                self.conn, theirs = mp.Pipe()
                mp.Process(target=serve_index, args=(theirs,), daemon=True).start()
            np.save(os.path.join(self.root, f"e{epoch}.npy"), np.random.standard_normal((4096, 32)).astype(np.float32))
        return torch.from_numpy(np.load(os.path.join(self.root, f"e{epoch}.npy")))

    def neighbours(self, x):
        if self.conn is None:
            return x
        self.conn.send(x.numpy())
        return torch.from_numpy(self.conn.recv())


def main():
    torch.set_num_threads(1)
    cache = FeatureCache(tempfile.mkdtemp(prefix="features_"))
    head = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 32))
    opt = torch.optim.Adam(head.parameters(), lr=1e-3)
    for epoch in range(30):
        if epoch == 3:
            print("ONSET", flush=True)
        feats = cache.refresh(epoch)
        for step in range(600):
            x = feats[torch.randint(0, len(feats), (128,))]
            loss = (head(x) - cache.neighbours(x)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
