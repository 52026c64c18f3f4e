"""FIELD
source: https://github.com/facebookresearch/deepcluster/issues/11 and https://github.com/BGU-CS-VIL/DeepDPM/issues/28 (the clustering between two epochs takes long)
mechanism: between two epochs the pseudo-labels are computed by a mini-batch k-means in numpy with a time budget of seven minutes; no training step is made meanwhile
needs: cpu
ranks: 1
onset: printed
state: busy
cause: computing_on_host
blame: none
twin: none
"""
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn as nn


def features(model, images):
    with torch.no_grad():
        return torch.cat([model[0](b) for b in images.split(512)]).numpy()


def kmeans(x, k, budget):
    rng = np.random.default_rng(0)
    centres = x[rng.choice(len(x), k, replace=False)].copy()
    counts = np.ones(k)
    end = time.monotonic() + budget
    while time.monotonic() < end:
        part = x[rng.choice(len(x), 4096, replace=False)]
        dist = (part ** 2).sum(1)[:, None] - 2 * part @ centres.T + (centres ** 2).sum(1)[None]
        near = dist.argmin(1)
        for c in np.unique(near):
            mine = part[near == c]
            counts[c] += len(mine)
            centres[c] += (mine - centres[c]).sum(0) / counts[c]
    labels = np.concatenate([((p[:, None, :] - centres[None, :64]) ** 2).sum(2).argmin(1) for p in np.array_split(x, 64)])
    return torch.from_numpy(labels)


def train_epoch(model, opt, images, labels):
    for rows in torch.randperm(len(images)).split(64):
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    images = torch.randn(20000, 256)
    model = nn.Sequential(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 128)), nn.Linear(128, 64))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    labels = torch.randint(0, 64, (20000,))
    for epoch in range(9):
        print("epoch", epoch, "loss", train_epoch(model, opt, images, labels), flush=True)
        if epoch == 4:
            print("ONSET", flush=True)
            labels = kmeans(features(model, images), k=1000, budget=420)


if __name__ == "__main__":
    main()
