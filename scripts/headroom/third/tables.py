"""Third set, written from the list of levers alone: recommenders, graphs, counts.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    next_item          sparse_gradients, fused_optimizer   four million items with dense gradients, a loop over parameters
    molecule_messages  compile, fused_optimizer            messages of long chains of pointwise kernels
    gene_counts        pageable_copies, tf32               (instead: mixed_precision) 20,000 counts for each of 4,096 cells
    tuned_neighbours   nothing
    tuned_histories    nothing
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F  # noqa: N812
from blocks import Block
from pairing import DEVICE, Off, Pair, Step, adam, autocast, compiled, main
from torch import Tensor, nn

CARD = DEVICE == "cuda"


class NextItem(nn.Module):
    """A history of items to a vector that its next item should be close to."""

    def __init__(self, items: int, width: int, length: int, sparse: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width, sparse=sparse)
        self.rest = nn.Sequential(Block(width, 1, causal=True), Block(width, 1, causal=True), nn.LayerNorm(width))
        self.places = nn.Parameter(torch.zeros(length, width))

    def forward(self, seen: Tensor) -> Tensor:
        """[batch, length] to [batch, length, width]."""
        found: Tensor = self.rest(self.items(seen) + self.places)
        return found


def next_item(off: Off) -> Step:
    """Recommendation from histories: a small transformer over a large table.

    The largest lever is ``sparse_gradients``: a step touches 77,000 of four million rows, but zeroes, fills and updates all of
    them. A fused optimizer passes over the dense table a few times less, and is the second.
    """
    items, width, batch, length = (4_000_000, 64, 512, 50) if CARD else (50, 8, 2, 4)
    sparse = "sparse_gradients" not in off
    model = NextItem(items, width, length, sparse).to(DEVICE)
    others = [one for name, one in model.named_parameters() if name != "items.weight"]
    table = [model.items.weight]
    optimizers: list[torch.optim.Optimizer] = [adam(others, off)]
    optimizers.append(torch.optim.SparseAdam(table, lr=1e-4) if sparse else adam(table, off))
    held = [torch.randint(items, (batch, length + 1), device=DEVICE) for _ in range(4)]
    count = 0

    def step() -> None:
        nonlocal count
        seen = held[count % 4]
        count += 1
        with autocast(off):
            wish = model(seen[:, :-1]).float()
        good = (wish * model.items(seen[:, 1:])).sum(-1)
        bad = (wish * model.items(torch.randint_like(seen[:, 1:], items))).sum(-1)
        (F.softplus(-good) + F.softplus(bad)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


class Messages(nn.Module):
    """Messages along edges, weighted by the distance, added up at the atoms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shape, self.gate = nn.Linear(32, width), nn.Linear(width, width)
        self.value, self.update = nn.Linear(width, width), nn.Linear(width, width)
        self.centres = nn.Parameter(torch.linspace(0, 5, 32))

    def forward(self, atoms: Tensor, source: Tensor, target: Tensor, distance: Tensor) -> Tensor:
        """[atoms, width] to the same."""
        near = 0.5 * (torch.cos(distance * (torch.pi / 5)) + 1) * (distance < 5)
        shape = self.shape(torch.exp(-10 * (distance[:, None] - self.centres) ** 2)) * near[:, None]
        value = F.silu(self.value(atoms)).index_select(0, source)
        message = value * torch.sigmoid(self.gate(F.silu(shape))) * torch.tanh(shape) + 0.1 * value * shape
        summed = torch.zeros(atoms.shape, device=atoms.device).index_add(0, target, message.float())
        return atoms + F.silu(self.update(summed))


def molecule_messages(off: Off) -> Step:
    """Energies of molecules: message passing over 400,000 edges in bf16.

    The largest lever is ``compile``: each message is a chain of some twenty pointwise kernels over 100 MB, forwards and
    backwards. The optimizer has 39 parameters, so its loop is small beside them.
    """
    atoms, edges, width, layers = (20_000, 400_000, 128, 4) if CARD else (10, 40, 8, 2)
    model = nn.ModuleList(Messages(width) for _ in range(layers)).to(DEVICE)
    last = nn.Linear(width, 1).to(DEVICE)
    kinds = nn.Embedding(20, width).to(DEVICE)
    kind = torch.randint(20, (atoms,), device=DEVICE)
    source, target = torch.randint(atoms, (2, edges), device=DEVICE)
    distance, wanted = 6 * torch.rand(edges, device=DEVICE), torch.randn(atoms, 1, device=DEVICE)
    optimizer = adam([*model.parameters(), *last.parameters(), *kinds.parameters()], off)

    def loss() -> Tensor:
        x = kinds(kind)
        for layer in model:
            x = layer(x, source, target, distance)
        return F.mse_loss(last(x).float(), wanted)

    fast = compiled(loss, off) if CARD else loss

    def step() -> None:
        with autocast(off):
            found = fast()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Cells(nn.Module):
    """A variational autoencoder of counts."""

    def __init__(self, genes: int, width: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(genes, width), nn.ReLU(), nn.Linear(width, 2 * hidden))
        self.decoder = nn.Sequential(nn.Linear(hidden, width), nn.ReLU(), nn.Linear(width, genes))

    def forward(self, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Counts to logits of their shares, and the mean and log variance between."""
        mean, spread = self.encoder(torch.log1p(counts)).chunk(2, -1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * spread).exp()), mean, spread


def gene_counts(off: Off) -> Step:
    """A VAE over single cells in fp32; each batch is 330 MB of counts.

    The largest lever is ``pageable_copies``: the batch goes through the driver's staging buffer at a fraction of what the bus
    can do, with the card idle. TF32 is the second: two wide layers in plain fp32.
    """
    cells, genes, width, hidden = (4096, 20_000, 600, 32) if CARD else (4, 30, 16, 4)
    model = Cells(genes, width, hidden).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    fast = "pageable_copies" not in off
    held = [torch.randint(8, (cells, genes)).float() for _ in range(2)]
    if CARD and fast:
        held = [one.pin_memory() for one in held]
    count = 0

    def step() -> None:
        nonlocal count
        counts = held[count % 2].to(DEVICE, non_blocking=fast)
        count += 1
        with autocast(off):
            logits, mean, spread = model(counts)
        likely = (counts * torch.log_softmax(logits.float(), -1)).sum(-1)
        prior = 0.5 * (mean.float() ** 2 + spread.float().exp() - 1 - spread.float()).sum(-1)
        (prior - likely).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tuned_neighbours(off: Off) -> Step:
    """GraphSAGE over frozen bf16 features: one kernel gathers and averages 128 neighbours.

    No lever: the gather reads 4 GB of random rows, which is nearly all of the step.
    """
    nodes, fan, shown, batch = (4_000_000, 128, 128, 131_072) if CARD else (30, 3, 8, 4)
    features = torch.randn(nodes, shown, device=DEVICE, dtype=torch.bfloat16)
    near = torch.randint(nodes, (nodes // 4, fan), device=DEVICE, dtype=torch.int32)
    model = nn.Sequential(nn.Linear(2 * shown, 128), nn.ReLU(), nn.Linear(128, 64)).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    wanted = torch.randint(64, (batch,), device=DEVICE)
    fast = compiled(model, off) if CARD else model

    def step() -> None:
        seeds = torch.randint(nodes // 4, (batch,), device=DEVICE)
        with torch.no_grad():
            theirs = F.embedding_bag(near[seeds], features, mode="mean")
            both = torch.cat([features[seeds], theirs], 1)
        with autocast(off):
            logits = fast(both)
        F.cross_entropy(logits.float(), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Histories(nn.Module):
    """The mean of what a user saw, and a tower; an item by itself, and a tower."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.seen = nn.EmbeddingBag(items, width, mode="mean", sparse=True)
        self.user = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64))
        self.item = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, seen: Tensor, wanted: Tensor) -> Tensor:
        """[batch, history] and [batch, 1] to [batch]."""
        return (self.user(self.seen(seen)) * self.item(self.seen(wanted))).sum(-1)


def tuned_histories(off: Off) -> Step:
    """Two towers over one table with sparse gradients and plain SGD for it; ids are made on the card.

    No lever: gathering, spreading and adding 6.5 million rows is the step.
    """
    items, width, batch, length = (5_000_000, 64, 131_072, 50) if CARD else (50, 8, 4, 3)
    model = Histories(items, width).to(DEVICE)
    table = torch.optim.SGD(model.seen.parameters(), lr=0.1)
    towers = adam([*model.user.parameters(), *model.item.parameters()], off)
    clicked = torch.randint(2, (batch,), device=DEVICE).float()
    fast = compiled(model, off) if CARD else model

    def step() -> None:
        seen = torch.randint(items, (batch, length), device=DEVICE)
        with autocast(off):
            found = fast(seen, seen[:, :1])
        F.binary_cross_entropy_with_logits(found.float(), clicked).backward()
        for optimizer in (table, towers):
            optimizer.step()
            optimizer.zero_grad()

    return step


PAIRS = {
    "next_item": Pair(next_item, ("sparse_gradients", "fused_optimizer")),
    "molecule_messages": Pair(molecule_messages, ("compile", "fused_optimizer")),
    "gene_counts": Pair(gene_counts, ("pageable_copies", "tf32"), ("mixed_precision",)),
    "tuned_neighbours": Pair(tuned_neighbours, ("compile",)),
    "tuned_histories": Pair(tuned_histories, ("compile",)),
}

if __name__ == "__main__":
    main(PAIRS)
