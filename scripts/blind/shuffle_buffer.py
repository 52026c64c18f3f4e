"""FIELD
source: activeloopai/deeplake#1760 (long pause at the start of each epoch: the shuffle buffer is filled first); also webdataset/webdataset#267
mechanism: the loader's worker decodes samples into a large shuffle buffer before it yields the first one, and the training thread waits for that first batch
needs: cpu
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import random
import time
import zlib

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)


class ShardStream(IterableDataset):
    def __init__(self, samples, buffer_size, fill_seconds):
        self.samples, self.buffer_size, self.fill_seconds = samples, buffer_size, fill_seconds

    def decode(self, key):
        rng = np.random.default_rng(key)
        raw = zlib.compress((rng.integers(0, 32, 96_000, dtype=np.int16)).tobytes(), 6)
        wave = np.frombuffer(zlib.decompress(raw), dtype=np.int16).astype(np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(wave, 1024)[::256]
        spectrum = np.log1p(np.abs(np.fft.rfft(frames * np.hanning(1024), axis=1)))
        return spectrum.mean(0).astype(np.float32)[:512], key % 10

    def __iter__(self):
        rng, buffer, began = random.Random(0), [], time.time()
        for key in range(self.samples):
            sample = self.decode(key)
            if len(buffer) < self.buffer_size and time.time() - began < self.fill_seconds:
                buffer.append(sample)
                continue
            k = rng.randrange(len(buffer))
            out, buffer[k] = buffer[k], sample
            yield out
        rng.shuffle(buffer)
        yield from buffer


def fit(model, opt, dataset, stage):
    loader = DataLoader(dataset, batch_size=32, num_workers=1, prefetch_factor=4)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"stage {stage} step {step} loss {loss.item():.3f}", flush=True)
        if step == 60:
            return


def main():
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, opt, ShardStream(samples=400, buffer_size=16, fill_seconds=5), "pilot")
    print("ONSET", flush=True)
    fit(model, opt, ShardStream(samples=200_000, buffer_size=150_000, fill_seconds=390), "main")


if __name__ == "__main__":
    main()
