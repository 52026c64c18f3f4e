"""FIELD
source: own
mechanism: DeepCluster-like: after each epoch k-means over the features of the whole set runs in torch for minutes (here two and a half), then training goes on
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host, evaluating
blame: none
twin: none
"""
import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
encoder = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
head = torch.nn.Linear(64, 200)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
images = torch.randn(40_000, 128)


@torch.no_grad()
def extract():
    return torch.cat([encoder(part) for part in images.split(2048)])


def kmeans(features, k, seconds):
    end = time.monotonic() + seconds
    centres = features[torch.randperm(len(features))[:k]].clone()
    while True:
        assigned = torch.cat([torch.cdist(part, centres).argmin(1) for part in features.split(4096)])
        centres.zero_().index_add_(0, assigned, features)
        centres /= torch.bincount(assigned, minlength=k).clamp_min(1)[:, None]
        if time.monotonic() > end:
            return assigned


def fit_epoch(labels, number):
    for step, rows in enumerate(torch.randperm(len(images)).split(128)):
        loss = torch.nn.functional.cross_entropy(head(encoder(images[rows])), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"epoch {number} step {step} loss {loss.item():.3f}", flush=True)


labels = torch.randint(0, 200, (len(images),))
for number in range(100):
    fit_epoch(labels, number)
    if number == 2:
        print("ONSET", flush=True)
    labels = kmeans(extract(), 200, 150 if number == 2 else 0.5)
