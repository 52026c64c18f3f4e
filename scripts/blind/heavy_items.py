"""FIELD
source: own (mixed slide collections: most files are small tiles, a few are whole slides that take long to stitch)
mechanism: with two loader workers every tenth batch contains one whole slide, registered for 14 s, and the steps stall for it
needs: cpu
ranks: 1
onset: printed
state: slow
cause: bursty_loading, starved_by_transforms
blame: none
twin: none
"""
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Slides(Dataset):
    def __init__(self, n, whole_every):
        self.n, self.whole_every = n, whole_every

    def __len__(self):
        return self.n

    def stitch(self, rng, tiles, budget):
        canvas = np.zeros((256, 256), dtype=np.float32)
        began, placed = time.monotonic(), 0
        while placed < tiles or time.monotonic() - began < budget:
            placed += 1
            tile = rng.standard_normal((128, 128)).astype(np.float32)
            spectrum = np.fft.rfft2(tile)
            spectrum[16:-16] = 0
            y, x = rng.integers(0, 128, 2)
            canvas[y:y + 128, x:x + 128] += np.fft.irfft2(spectrum, s=tile.shape)
        return canvas[:64, :64]

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        whole = self.whole_every and i % self.whole_every == self.whole_every - 1
        return torch.from_numpy(self.stitch(rng, 8, 14.0 if whole else 0.0))[None], i % 4


def main():
    net = nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 256, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for name, dataset, seconds in [("tiles", Slides(20_000, None), 9), ("mixed", Slides(20_000, 80), 440)]:
        if name == "mixed":
            print("ONSET", flush=True)
        until, mark = time.time() + seconds, time.time()
        for step, (x, y) in enumerate(DataLoader(dataset, batch_size=8, num_workers=2)):
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 10 == 0:
                print(f"{name} step {step} loss {loss.item():.3f} {time.time() - mark:.1f}s", flush=True)
                mark = time.time()
            if time.time() > until:
                break


if __name__ == "__main__":
    main()
