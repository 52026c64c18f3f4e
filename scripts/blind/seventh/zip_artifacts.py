"""FIELD
source: own: the end of a run packs predictions and code into an archive with a slow codec in a process pool
mechanism: after the last epoch the main thread waits in as_completed for one pool process that compresses the
    prediction files with lzma in its extreme mode, each of which takes long; a line is printed per file
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import concurrent.futures as cf
import lzma
import multiprocessing
import pathlib
import shutil
import signal
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def squeeze(path):
    data = path.read_bytes()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "nice_len": 273, "depth": 2000}]
    packed = lzma.compress(data, format=lzma.FORMAT_XZ, filters=filters)
    path.with_suffix(".xz").write_bytes(packed)
    return path.name, len(data), len(packed)


def child_setup():
    signal.alarm(300)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(128, 64), nn.ELU(), nn.Linear(64, 8))
        self.decode = nn.Sequential(nn.Linear(8, 64), nn.ELU(), nn.Linear(64, 128))

    def forward(self, x):
        return self.decode(self.encode(x))


def fit(model, loader, seconds):
    optimizer = torch.optim.Adagrad(model.parameters(), 0.02)
    began, epoch = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        total = 0.0
        for (x,) in loader:
            loss = (model(x) - x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            time.sleep(0.01)
        epoch += 1
        print(f"epoch {epoch} loss {total / len(loader):.4f}", flush=True)


def write_predictions(folder, files=24, rows=60_000):
    rng = np.random.default_rng(0)
    base = rng.integers(0, 50, 4096).astype(np.uint8)
    for number in range(files):
        rolls = np.repeat(rng.integers(0, 4096, rows // 6), 6)
        block = base[(rolls[:, None] + np.arange(128)) % 4096]
        block[rng.random(block.shape) < 0.02] += 1
        path = folder / f"predictions_{number:03}.bin"
        path.write_bytes(block.tobytes())
        yield path


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(4)
    mixing = torch.randn(8, 128)
    data = TensorDataset(torch.randn(5000, 8) @ mixing + 0.1 * torch.randn(5000, 128))
    fit(Autoencoder(), DataLoader(data, 64, shuffle=True), seconds=18)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="artifacts_"))
    try:
        print("packing the artifacts", flush=True)
        print("ONSET", flush=True)
        with cf.ProcessPoolExecutor(1, multiprocessing.get_context("forkserver"), initializer=child_setup) as pool:
            jobs = [pool.submit(squeeze, path) for path in write_predictions(folder)]
            for job in cf.as_completed(jobs):
                name, before, after = job.result()
                print(f"{name}: {before / 1e6:.1f} MB to {after / 1e6:.2f} MB", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
