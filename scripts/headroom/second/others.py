"""Second set, written from the list of levers alone: recommenders, graphs, speech.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    click_tables     sparse_gradients, pageable_copies    26 tables with dense gradients; features from pageable memory
    sampled_graph    data_loading                         neighbours are sampled in the training process
    speech_lengths   synchronising_reads, mixed_precision the host reads the length of each utterance of a batch
    tuned_graph      nothing
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, main
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

CARD = DEVICE == "cuda"


class Clicks(nn.Module):
    """Tables of categories, a perceptron over numbers, their products, a perceptron."""

    def __init__(self, tables: int, rows: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width, sparse=sparse) for _ in range(tables))
        self.numbers = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width))
        pairs = (tables + 1) * tables // 2
        self.last = nn.Sequential(
            nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )
        self.below = torch.tril_indices(tables + 1, tables + 1, -1, device=DEVICE)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        """[batch, 13] and [batch, tables] to [batch, 1]."""
        dense = self.numbers(numbers)
        every = torch.stack([dense, *(table(kinds[:, at]) for at, table in enumerate(self.tables))], 1)
        products = (every @ every.transpose(1, 2))[:, self.below[0], self.below[1]]
        found: Tensor = self.last(torch.cat([dense, products], 1))
        return found


def click_tables(off: Off) -> Step:
    """Clicks: large tables, a small network."""
    tables, rows, width, batch = (26, 400_000, 64, 16384) if CARD else (3, 100, 16, 8)
    sparse = "sparse_gradients" not in off
    model = Clicks(tables, rows, width, sparse).to(DEVICE)
    others = [*model.numbers.parameters(), *model.last.parameters()]
    optimizers: list[torch.optim.Optimizer] = [adam(others, off)]
    large = list(model.tables.parameters())
    optimizers.append(torch.optim.SparseAdam(large) if sparse else adam(large, off))
    held = [
        (torch.rand(batch, 13), torch.randint(rows, (batch, tables)), torch.rand(batch, 1).round()) for _ in range(4)
    ]
    fast = "pageable_copies" not in off
    if CARD and fast:
        held = [(a.pin_memory(), b.pin_memory(), c.pin_memory()) for a, b, c in held]
    count = 0

    def step() -> None:
        nonlocal count
        numbers, kinds, clicked = (one.to(DEVICE, non_blocking=fast) for one in held[count % 4])
        count += 1
        with autocast(off):
            found = model(numbers, kinds)
        F.binary_cross_entropy_with_logits(found.float(), clicked).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


class Neighbours(IterableDataset[tuple[Tensor, Tensor, Tensor]]):
    """Two rounds of sampled neighbours of random nodes, in numpy and Python."""

    def __init__(self, nodes: int, batch: int, fan: int) -> None:
        self.nodes, self.batch, self.fan = nodes, batch, fan

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features of seeds, of neighbours, of theirs."""
        random = np.random.default_rng()
        edges = random.integers(self.nodes, size=(self.nodes, 24))
        features = random.random((self.nodes, 64), dtype=np.float32)
        while True:
            seeds = random.integers(self.nodes, size=self.batch)
            one = np.stack([random.choice(edges[node], self.fan, replace=False) for node in seeds])
            two = edges[one.ravel()][:, : self.fan]
            yield torch.from_numpy(features[seeds]), torch.from_numpy(features[one]), torch.from_numpy(features[two])


class Sage(nn.Module):
    """Means of neighbours, twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.theirs = nn.Linear(64, width), nn.Linear(64, width)
        self.mixed, self.last = nn.Linear(2 * width, width), nn.Linear(width, 40)

    def forward(self, seeds: Tensor, one: Tensor, two: Tensor) -> Tensor:
        """Features to classes."""
        near = F.relu(self.own(one) + self.theirs(two.mean(1)).view(*one.shape[:2], -1)).mean(1)
        found: Tensor = self.last(F.relu(self.mixed(torch.cat([self.own(seeds), near], -1))))
        return found


def sampled_graph(off: Off) -> Step:
    """Classes of nodes, from sampled neighbours."""
    nodes, batch, width = (100_000, 2048, 1024) if CARD else (200, 16, 32)
    model = Sage(width).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    workers = 0 if "data_loading" in off else 8 if CARD else 1
    loader = DataLoader(
        Neighbours(nodes, batch, 8), None, num_workers=workers, pin_memory=CARD, prefetch_factor=4 if workers else None
    )
    batches = iter(loader)
    labels = torch.randint(40, (batch,), device=DEVICE)

    def step() -> None:
        seeds, one, two = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with autocast(off):
            loss = F.cross_entropy(model(seeds, one, two), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tuned_graph(off: Off) -> Step:
    """A whole graph on the card, bf16, compiled: gathers and sums of edges."""
    nodes, edges, width = (200_000, 4_000_000, 256) if CARD else (50, 200, 16)
    weights = nn.ParameterList([nn.Parameter(torch.randn(width, width) * width**-0.5) for _ in range(3)]).to(DEVICE)
    features = torch.randn(nodes, width, device=DEVICE, dtype=torch.bfloat16)
    into, out = torch.randint(nodes, (2, edges), device=DEVICE)
    into = into.sort().values
    graph = torch.sparse_coo_tensor(
        torch.stack([into, out]), torch.ones(edges, device=DEVICE), (nodes, nodes)
    ).coalesce()
    whole = graph.to_sparse_csr()
    optimizer = adam(weights.parameters(), off)
    labels = torch.randint(width, (nodes,), device=DEVICE)

    def step() -> None:
        x = features
        for weight in weights:
            with autocast(off):
                y = x @ weight
            x = F.relu(torch.sparse.mm(whole, y.float()))
        F.cross_entropy(x, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Speech(nn.Module):
    """Convolutions and LSTMs over frames, a predictor over labels, a joint network."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, width, 5, 2, 2), nn.GELU(), nn.Conv1d(width, width, 5, 2, 2), nn.GELU()
        )
        self.encoder, self.words = nn.LSTM(width, width, 3, batch_first=True), nn.Embedding(words, width)
        self.predictor, self.a, self.b = (
            nn.GRU(width, width, batch_first=True),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.last = nn.Linear(width, words)

    def forward(self, frames: Tensor, labels: Tensor, lengths: list[tuple[int, int]] | None) -> Tensor:
        """Mean log probability of blanks over each utterance's lattice."""
        heard = self.a(self.encoder(self.front(frames.transpose(1, 2)).transpose(1, 2))[0])
        said = self.b(self.predictor(self.words(labels))[0])
        if lengths is None:
            every = torch.log_softmax(self.last(torch.tanh(heard[:, :, None] + said[:, None])), -1)
            return -every[..., 0].mean()
        each = []
        for at, (times, count) in enumerate(lengths):
            lattice = torch.tanh(heard[at, :times, None] + said[at, None, :count])
            each.append(-torch.log_softmax(self.last(lattice), -1)[..., 0].mean())
        return torch.stack(each).mean()


def speech_lengths(off: Off) -> Step:
    """A transducer that trims each utterance to its length."""
    width, words, batch, frames, labels = (512, 1024, 32, 600, 24) if CARD else (16, 16, 2, 40, 4)
    model = Speech(width, words).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    heard, said = torch.rand(batch, frames, 80, device=DEVICE), torch.randint(words, (batch, labels), device=DEVICE)
    times = torch.randint(frames // 8, frames // 4 + 1, (batch,), device=DEVICE)
    counts = torch.randint(labels // 2, labels + 1, (batch,), device=DEVICE)
    known = list(zip(times.tolist(), counts.tolist(), strict=True))

    def step() -> None:
        trimmed = known
        if "synchronising_reads" in off:
            trimmed = [(int(times[at].item()), int(counts[at].item())) for at in range(batch)]
        with autocast(off):
            loss = model(heard, said, trimmed)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "click_tables": Pair(click_tables, ("sparse_gradients", "pageable_copies")),
    "sampled_graph": Pair(sampled_graph, ("data_loading",)),
    "speech_lengths": Pair(speech_lengths, ("synchronising_reads", "mixed_precision"), ("tf32",)),
    "tuned_graph": Pair(tuned_graph),
}

if __name__ == "__main__":
    main(PAIRS)
