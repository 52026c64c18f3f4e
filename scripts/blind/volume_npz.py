"""FIELD
source: https://github.com/MIC-DKFZ/nnUNet/issues/566 and https://github.com/numpy/numpy/issues/26498 (a compressed npz is decompressed whole for one slice)
mechanism: each sample indexes an NpzFile, which inflates the complete volume anew to return one slice of it, in the training thread
needs: cpu
ranks: 1
onset: printed
state: slow
cause: serial_loading
blame: __getitem__ (volume_npz.py)
twin: none
"""
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Slices(Dataset):
    """2D slices of volumes; small studies are kept in memory."""

    def __init__(self, files, in_memory):
        self.files = files
        self.cache = [np.load(f)["volume"] for f in files] if in_memory else None
        self.depth = 96

    def __len__(self):
        return len(self.files) * self.depth

    def __getitem__(self, i):
        study, z = divmod(i, self.depth)
        volume = self.cache[study] if self.cache else np.load(self.files[study])["volume"]
        return torch.from_numpy(volume[z].astype(np.float32) / 255.0).unsqueeze(0)


def make_studies(root, n):
    rng = np.random.default_rng(0)
    files = []
    for k in range(n):
        base = rng.normal(90, 25, (96, 128, 128)).clip(0, 255).astype(np.uint8)
        files.append(os.path.join(root, f"study{k}.npz"))
        np.savez_compressed(files[-1], volume=base)
    return files


def main(max_seconds=600):
    torch.set_num_threads(1)
    files = make_studies(tempfile.mkdtemp(prefix="ct_"), 6)
    net = nn.Sequential(nn.Conv2d(1, 4, 5, stride=4, padding=2), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, stride=4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    start = time.time()
    stages = [("small", Slices(files[:2], True), 60), ("full", Slices(files, False), 10 ** 6)]
    for name, data, epochs in stages:
        loader = DataLoader(data, batch_size=8, shuffle=True)
        if name == "full":
            print("ONSET", flush=True)
        for epoch in range(epochs):
            for step, x in enumerate(loader):
                loss = (net(x) - x).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                if step % 10 == 0:
                    print(f"{name} {epoch}.{step} loss {loss.item():.4f} at {time.time() - start:.1f} s", flush=True)
                if time.time() - start > max_seconds:
                    return


if __name__ == "__main__":
    main()
