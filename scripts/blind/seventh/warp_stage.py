"""FIELD
source: own: a strong augmentation, written in Python, is switched on after the warm-up
mechanism: one DataLoader worker gives batches faster than they are used; from the second stage on it warps each image
    row by row in Python, and the training thread waits for the worker most of the time
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_transforms
blame: none
twin: none
"""
import ctypes
import math
import multiprocessing
import signal
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm


class Glyphs(IterableDataset):
    def __init__(self, strength, size=32):
        self.strength, self.size = strength, size

    def draw(self, rng):
        image, label = np.zeros((self.size, self.size), np.float32), int(rng.integers(4))
        at = rng.integers(6, self.size - 6, 2)
        if label % 2:
            image[at[0] - 4 : at[0] + 4] = 1
        if label // 2:
            image[:, at[1] - 4 : at[1] + 4] += 1
        return image + rng.normal(0, 0.2, image.shape).astype(np.float32), label

    def warp(self, image, rng):
        out = np.empty_like(image)
        phase, depth = rng.uniform(0, 6.28), rng.uniform(1, 3)
        last = self.size - 1
        for row in range(self.size):
            for column in range(self.size):
                y = row + depth * math.sin(phase + column / 5)
                x = column + depth * math.cos(phase + row / 5)
                r, c = min(max(int(y), 0), last - 1), min(max(int(x), 0), last - 1)
                a, b = min(max(y - r, 0.0), 1.0), min(max(x - c, 0.0), 1.0)
                top = image[r, c] * (1 - b) + image[r, c + 1] * b
                bottom = image[r + 1, c] * (1 - b) + image[r + 1, c + 1] * b
                out[row, column] = top * (1 - a) + bottom * a
        return out

    def __iter__(self):
        signal.alarm(300)
        rng = np.random.default_rng()
        while True:
            image, label = self.draw(rng)
            for _ in range(self.strength.value):
                image = self.warp(image, rng)
            yield image[None], label


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    strength = multiprocessing.Value(ctypes.c_int, 0)
    loader = DataLoader(Glyphs(strength), batch_size=32, num_workers=1, prefetch_factor=4)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(512, 4)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    began = time.monotonic()
    with tqdm(loader, mininterval=2, miniters=1) as bar:
        for images, labels in bar:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            time.sleep(0.01)
            if not strength.value and time.monotonic() - began > 16:
                strength.value = 3
                print("ONSET", flush=True)


if __name__ == "__main__":
    main()
