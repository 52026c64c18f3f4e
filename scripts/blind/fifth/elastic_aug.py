"""FIELD
source: albumentations-team/albumentations#168, #2051 (ElasticTransform and PiecewiseAffine are very slow), aleju/imgaug#32
mechanism: the only DataLoader worker spends a good half second per batch on elastic deformation of large images; the small network waits for it in every step
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_transforms
blame: elastic () in workers
twin: none
"""

import signal
import time
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 320


def horizontal_flip(image, mask, rng):
    return image[:, ::-1], mask[:, ::-1]


def brightness(image, mask, rng, limit=0.2):
    return np.clip(image * (1 + rng.uniform(-limit, limit)), 0, 1), mask


def elastic(image, mask, rng, alpha=30.0, sigma=8.0):
    """Smooth random displacement of every pixel, bilinear."""
    height, width = mask.shape
    freq_y, freq_x = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    blur = np.exp(-2 * (np.pi * sigma) ** 2 * (freq_y**2 + freq_x**2))
    shift = [alpha * np.fft.irfft2(np.fft.rfft2(rng.uniform(-1, 1, (height, width))) * blur) for _ in "yx"]
    y = np.clip(np.arange(height)[:, None] + shift[0], 0, height - 1.001)
    x = np.clip(np.arange(width)[None] + shift[1], 0, width - 1.001)
    top, left = y.astype(int), x.astype(int)
    dy, dx = (y - top)[..., None], (x - left)[..., None]
    upper = image[top, left] * (1 - dx) + image[top, left + 1] * dx
    lower = image[top + 1, left] * (1 - dx) + image[top + 1, left + 1] * dx
    return upper * (1 - dy) + lower * dy, mask[np.rint(y).astype(int), np.rint(x).astype(int)]


class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, image, mask, rng):
        for chance, step in self.steps:
            if rng.random() < chance:
                image, mask = step(image, mask, rng)
        return image, mask


class Cells(Dataset):
    def __init__(self, transform, count=512):
        self.transform, self.count = transform, count
        self.grid = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij"))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        center = rng.uniform(60, SIZE - 60, 2)[:, None, None]
        mask = (((self.grid - center) ** 2).sum(0) < 50**2).astype(np.float32)
        image = np.repeat(mask[..., None], 3, 2) * 0.6 + 0.2
        image, mask = self.transform(image, mask, rng)
        image = image[::5, ::5].astype(np.float32).transpose(2, 0, 1)
        return torch.from_numpy(image.copy()), torch.from_numpy(mask[::5, ::5].copy())


def quit_late(seconds, _worker):
    signal.alarm(seconds)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    transform = Compose((0.5, horizontal_flip), (0.8, brightness), (1.0, elastic))
    loader = DataLoader(
        Cells(transform), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True,
        worker_init_fn=partial(quit_late, 300),
    )
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    begin, told, step = time.monotonic(), False, 0
    for epoch in range(1000):
        for image, mask in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(net(image).squeeze(1), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0:
                rate = step / (time.monotonic() - begin)
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {rate:.2f} it/s", flush=True)
            if not told and time.monotonic() - begin > 11:
                told = True
                print("ONSET", flush=True)


if __name__ == "__main__":
    main()
