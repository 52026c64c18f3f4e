"""FIELD
source: graphdeeplearning/graphtransformer#8 (Laplacian positional encodings by a dense eigendecomposition of each graph)
mechanism: before the second stage the positional encodings of 80 graphs are computed, each a dense eigh that takes seconds; it ends by itself
needs: cpu
ranks: 1
onset: printed
state: busy
cause: computing_on_host
blame: laplacian_pe (graph_pe.py)
twin: none
"""
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


def random_graph(n, degree, seed):
    g = torch.Generator().manual_seed(seed)
    src = torch.arange(n).repeat_interleave(degree)
    dst = torch.randint(0, n, (n * degree,), generator=g)
    adj = torch.zeros(n, n, dtype=torch.float64)
    adj[src, dst] = 1.0
    adj = torch.maximum(adj, adj.T)
    adj.fill_diagonal_(0)
    return adj


def laplacian_pe(adj, k):
    norm = adj.sum(1).clamp(min=1).rsqrt()
    lap = torch.eye(len(adj), dtype=adj.dtype) - norm[:, None] * adj * norm[None]
    values, vectors = torch.linalg.eigh(lap)
    return vectors[:, 1:k + 1].float()


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        return x + torch.softmax(self.q(x) @ self.k(x).T / x.shape[1] ** 0.5, -1) @ self.v(x)


def fit(net, opt, graphs, seconds):
    started, step = time.time(), 0
    while time.time() - started < seconds:
        pe, labels = graphs[step % len(graphs)]
        rows = torch.randint(0, len(pe), (256,))
        loss = nn.functional.cross_entropy(net(pe[rows]), labels[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 200 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def main():
    net = nn.Sequential(nn.Linear(16, 96), Layer(96), Layer(96), nn.Linear(96, 6))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    small = []
    for seed in range(10):
        adj = random_graph(150, 4, seed)
        small.append((laplacian_pe(adj, 16), adj.sum(1).long() % 6))
    fit(net, opt, small, 10)
    print("ONSET", flush=True)
    large, begun = [], time.time()
    for seed in range(80):
        adj = random_graph(2600, 6, 1000 + seed)
        large.append((laplacian_pe(adj, 16), adj.sum(1).long() % 6))
        print(f"encodings {seed + 1}/80", flush=True)
        if time.time() - begun > 420:
            break
    fit(net, opt, large, 30)


if __name__ == "__main__":
    main()
