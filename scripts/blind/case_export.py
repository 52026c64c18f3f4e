"""FIELD
source: MIC-DKFZ/nnUNet#1885 and #2072 (all predictions are there, GPU at 0, the pool still resamples and exports)
mechanism: after the last prediction the trainer waits in AsyncResult.get() for a pool of two processes that resample the volumes
needs: cpu
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, evaluating
blame: none
twin: none
"""
import multiprocessing as mp
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


def resample_axis(volume, new, axis):
    volume = np.moveaxis(volume, axis, -1)
    flat = volume.reshape(-1, volume.shape[-1])
    grid = np.linspace(0, flat.shape[1] - 1, new)
    base = np.arange(flat.shape[1])
    out = np.stack([np.interp(grid, base, row) for row in flat])
    return np.moveaxis(out.reshape(*volume.shape[:-1], new), -1, axis)


def export_segmentation(logits, shape, path, until):
    if time.time() > until:   # out of budget: nearest grid only
        shape = logits.shape[1:]
    probabilities = []
    for channel in logits:
        for axis, new in enumerate(shape):
            channel = resample_axis(channel, new, axis)
        probabilities.append(channel.astype(np.float16))
    seg = np.argmax(np.stack(probabilities), 0).astype(np.uint8)
    np.savez_compressed(path, seg=seg)
    return int((seg > 0).sum())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 4, 3, padding=1))

    def forward(self, x):
        return self.net(x)


def main():
    out = tempfile.mkdtemp(prefix="validation_raw_")
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.99, nesterov=True)
    for epoch in range(3):
        for _ in range(30):
            x, y = torch.randn(2, 1, 24, 24, 24), torch.randint(0, 4, (2, 24, 24, 24))
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} train loss {loss.item():.4f}", flush=True)
    net.eval()
    results = []
    with mp.get_context("spawn").Pool(2) as pool, torch.no_grad():
        until = time.time() + 400
        for case in range(420):
            logits = net(torch.randn(1, 1, 20, 24, 24))[0].numpy()
            results.append(pool.apply_async(export_segmentation, (logits, (150, 300, 300), os.path.join(out, f"case_{case:03d}.npz"), until)))
        print("ONSET", flush=True)
        sizes = [r.get() for r in results]
    for name in os.listdir(out):
        os.remove(os.path.join(out, name))
    os.rmdir(out)
    print("mean foreground", sum(sizes) / len(sizes), flush=True)


if __name__ == "__main__":
    main()
