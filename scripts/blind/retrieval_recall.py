"""FIELD
source: Confusezius/Deep-Metric-Learning-Baselines#9 ("evaluation on SOP took forever", it was only the size of the test set)
mechanism: after embedding the test set, Recall@k and MAP@R are computed query by query in numpy for minutes
needs: cpu
ranks: 1
onset: printed
state: busy
cause: evaluating, computing_on_host
blame: none
twin: none
"""
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=1)


def batch(n):
    labels = torch.randint(0, 500, (n,))
    gen = torch.Generator().manual_seed(0)
    centres = torch.randn(500, 256, generator=gen)
    return centres[labels] + 0.8 * torch.randn(n, 256), labels


def evaluate(model, n, time_limit=None):
    x, labels = batch(n)
    with torch.no_grad():
        emb = torch.cat([model(chunk) for chunk in x.split(1024)]).numpy()
    labels = labels.numpy()
    started = time.time()
    recalls, maps = {1: [], 10: [], 100: []}, []
    for q in range(n):
        dist = np.sqrt(np.maximum(0, ((emb - emb[q]) ** 2).sum(1)))
        dist[q] = np.inf
        order = np.argsort(dist, kind="stable")
        same = labels[order] == labels[q]
        for k in recalls:
            recalls[k].append(bool(same[:k].any()))
        r = int(same.sum())
        top = same[:r]
        maps.append(float((np.cumsum(top) / np.arange(1, r + 1) * top).sum() / max(1, r)))
        if time_limit and time.time() - started > time_limit:
            break
    return {f"R@{k}": round(float(np.mean(v)), 4) for k, v in recalls.items()} | {"MAP@R": round(float(np.mean(maps)), 4)}


def main():
    model = Embedder()
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    criterion = nn.TripletMarginLoss(0.2)
    for epoch, size in enumerate([500, 500, 40000]):
        for _ in range(400):
            x, y = batch(112)
            e = model(x)
            pos = torch.stack([e[(y == c).nonzero()[0, 0]] for c in y])
            loss = criterion(e, pos, e[torch.randperm(len(e))])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if size > 1000:
            print("ONSET", flush=True)
        print(epoch, round(loss.item(), 4), evaluate(model, size, time_limit=400), flush=True)


if __name__ == "__main__":
    main()
