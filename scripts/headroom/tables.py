"""Recommenders and graph networks.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    recommender_dense      sparse_gradients     the gradient of a large table is dense, and Adam walks all of it
    recommender_pageable   pageable_copies      a batch of features copied from pageable memory
    recommender_default    mixed_precision, fused_optimizer
    recommender_tuned      nothing
    gnn_masks              synchronising_reads  boolean masks whose size the host must know
    gnn_small              cuda_graphs
    gnn_defaults           mixed_precision, synchronising_reads
    gnn_tuned              nothing
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, captured, main
from torch import Tensor, nn


class Recommender(nn.Module):
    """Tables and a perceptron."""

    def __init__(self, rows: int, tables: int, dense: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 64, mode="sum", sparse=sparse) for _ in range(tables))
        self.dense = nn.Linear(dense, 64)
        self.top = nn.Sequential(
            nn.Linear(64 * (tables + 1), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, features: Tensor, keys: Tensor) -> Tensor:
        """Features [batch, dense] and keys [tables, batch, bag] to a score."""
        parts = [self.dense(features)] + [table(one) for table, one in zip(self.tables, keys, strict=True)]
        return self.top(torch.cat([part.float() for part in parts], 1)).squeeze(1)


def recommender(
    off: Off,
    *,
    rows: int = 50_000,
    tables: int = 8,
    dense: int = 64,
    width: int = 1024,
    batch: int = 16384,
    host: bool = False,
) -> Step:
    """Clicks."""
    sparse = "sparse_gradients" not in off
    model = Recommender(rows, tables, dense, width, sparse).to(DEVICE)
    of_tables = [one for name, one in model.named_parameters() if name.startswith("tables")]
    others = [one for name, one in model.named_parameters() if not name.startswith("tables")]
    optimizers: list[Any] = [adam(others if sparse else [*others, *of_tables], off)]
    if sparse:
        optimizers.append(torch.optim.SparseAdam(of_tables, lr=1e-4))
    keys = torch.randint(rows, (tables, batch, 4), device=DEVICE)
    target = torch.rand(batch, device=DEVICE).round()
    held = torch.rand(batch, dense)
    if host and "pageable_copies" not in off and DEVICE == "cuda":
        held = held.pin_memory()
    elif not host:
        held = held.to(DEVICE)

    def step() -> None:
        features = held.to(DEVICE, non_blocking=True)
        with autocast(off):
            loss = F.binary_cross_entropy_with_logits(model(features, keys).float(), target)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


class Layer(nn.Module):
    """One round of messages along the edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update, self.norm = (
            nn.Linear(2 * width, width),
            nn.Linear(2 * width, width),
            nn.LayerNorm(width),
        )

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Node features to node features."""
        sent = F.relu(self.message(torch.cat([x[source], x[target]], 1)))
        summed = torch.zeros_like(x).index_add_(0, target, sent.to(x.dtype))
        return x + self.norm(F.relu(self.update(torch.cat([x, summed], 1))))


def gnn(off: Off, *, nodes: int, edges: int, width: int, layers: int, graphed: bool = False) -> Step:
    """Node classification with edges that are dropped from layer to layer."""
    rounds = nn.ModuleList(Layer(width) for _ in range(layers)).to(DEVICE)
    head = nn.Linear(width, 64).to(DEVICE)
    optimizer = adam([*rounds.parameters(), *head.parameters()], off, capturable=graphed and DEVICE == "cuda")
    x = torch.rand(nodes, width, device=DEVICE)
    ends = torch.randint(nodes, (2, edges), device=DEVICE)
    keep = torch.rand(layers, edges, device=DEVICE) < 0.8
    labels = torch.randint(64, (nodes,), device=DEVICE)
    kept = [(ends[0][one], ends[1][one]) for one in keep]

    def step() -> None:
        hidden = x
        with autocast(off):
            for number, layer in enumerate(rounds):
                if "synchronising_reads" in off:
                    source, target = ends[0][keep[number]], ends[1][keep[number]]
                else:
                    source, target = kept[number]
                hidden = layer(hidden, source, target)
            loss = F.cross_entropy(head(hidden), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not graphed)

    return captured(step, off) if graphed else step


PAIRS = {
    "recommender_dense": Pair(lambda off: recommender(off, rows=2_000_000, batch=4096), ("sparse_gradients",)),
    "recommender_pageable": Pair(
        lambda off: recommender(off, dense=2048, batch=16384, host=True), ("pageable_copies",)
    ),
    "recommender_default": Pair(
        lambda off: recommender(off, rows=10_000, width=4096), ("mixed_precision", "fused_optimizer"), ("tf32",)
    ),
    "recommender_tuned": Pair(lambda off: recommender(off, rows=1_000_000, width=4096, batch=32768)),
    "gnn_masks": Pair(
        lambda off: gnn(off, nodes=50_000, edges=200_000, width=128, layers=12), ("synchronising_reads",)
    ),
    "gnn_small": Pair(
        lambda off: gnn(off, nodes=2_000, edges=10_000, width=128, layers=12, graphed=True), ("cuda_graphs",)
    ),
    "gnn_defaults": Pair(
        lambda off: gnn(off, nodes=100_000, edges=400_000, width=512, layers=4),
        ("mixed_precision", "synchronising_reads"),
        ("tf32",),
    ),
    "gnn_tuned": Pair(lambda off: gnn(off, nodes=50_000, edges=400_000, width=256, layers=6, graphed=True)),
}

if __name__ == "__main__":
    main(PAIRS)
