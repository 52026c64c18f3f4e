"""FIELD
source: ceph/ceph-qa-suite#583, brooklyncentral/clocker#382 (a background process inherits the descriptor of a flock and keeps it locked)
mechanism: the feature cache is guarded by flock and given back by closing the file; a preview helper is forked while the
    cache is leased and inherits the descriptor; the next lease blocks in flock for as long as the helper lives
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, deadlocked_locks, blocked_child
blame: child
twin: none
"""

import contextlib
import fcntl
import multiprocessing
import os
import signal
import tempfile
import time

import numpy as np
import torch
from torch import nn

fork = multiprocessing.get_context("fork")


@contextlib.contextmanager
def lease(folder):
    handle = os.open(os.path.join(folder, ".lease"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


def preview_helper(pipe):
    """Renders a thumbnail whenever it gets one; most of the time there is nothing to do."""
    signal.alarm(300)
    while True:
        features = pipe.recv()
        low, high = features.min(), features.max()
        pipe.send(((features - low) / (high - low + 1e-6) * 255).astype("uint8").tobytes())


class FeatureCache:
    def __init__(self, folder):
        self.folder, self.preview = folder, None

    def path(self, part):
        return os.path.join(self.folder, f"{part}.npy")

    def part(self, part, with_preview):
        with lease(self.folder):
            if not os.path.exists(self.path(part)):
                np.save(self.path(part), np.random.default_rng(part).normal(size=(2000, 96)).astype("float32"))
            features = np.load(self.path(part))
            if with_preview and self.preview is None:
                self.preview, end = fork.Pipe()
                fork.Process(target=preview_helper, args=(end,), daemon=True, name="preview").start()
                print("preview started", flush=True)
                print("ONSET", flush=True)
        if self.preview is not None:
            self.preview.send(features[:64])
            self.preview.recv()
        return torch.from_numpy(features)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    head = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 256), nn.SiLU(), nn.Linear(256, 96))
    opt = torch.optim.AdamW(head.parameters(), 5e-4)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cache = FeatureCache(folder)
        for epoch in range(100_000):
            features = cache.part(epoch % 6, time.monotonic() - start > 16)
            for rows in features[torch.randperm(len(features))].split(40):
                noisy = rows + 0.3 * torch.randn_like(rows)
                loss = (head(noisy) - rows).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
            if epoch % 5 == 0:
                print(f"epoch {epoch} denoising loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
