"""FIELD
source: own
mechanism: repeated k-fold cross-validation: every few seconds a new model and a new optimizer start from step 0 and a short test follows; from outside it looks like restarts, and it is the planned work
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


def molecules(n=3000, atoms=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    position = torch.randn(n, atoms, 3, generator=g)
    charge = torch.randint(1, 9, (n, atoms), generator=g)
    gaps = torch.cdist(position, position) + torch.eye(atoms)
    energy = (charge[:, :, None] * charge[:, None] / gaps).sum((1, 2)).log()
    return gaps, charge, (energy - energy.mean()) / energy.std()


class MessagePassing(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.atom = nn.Embedding(9, dim)
        self.filters = nn.Sequential(nn.Linear(12, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.update = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))
        self.readout = nn.Linear(dim, 1)
        self.register_buffer("centres", torch.linspace(0, 5, 12))

    def forward(self, gaps, charge):
        h = self.atom(charge)
        w = self.filters((-(gaps[..., None] - self.centres) ** 2).exp())
        for layer in self.update:
            h = h + torch.tanh(layer((w * h[:, None]).sum(2) / 10))
        return self.readout(h).sum((1, 2)) / 10


def train_fold(data, train, test, epochs, seed):
    torch.manual_seed(seed)
    gaps, charge, energy = data
    model = MessagePassing()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.from_numpy(np.random.permutation(train)).split(32):
            loss = nn.functional.mse_loss(model(gaps[rows], charge[rows]), energy[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
    with torch.no_grad():
        return (model(gaps[test], charge[test]) - energy[test]).abs().mean().item()


def main():
    data = molecules()
    started, repeat = time.time(), 0
    train_fold(data, np.arange(1600), np.arange(2800, 3000), 3, 0)
    print("ONSET", flush=True)
    while time.time() - started < 600:
        folds = np.array_split(np.random.default_rng(repeat).permutation(3000), 10)
        for k, test in enumerate(folds):
            train = np.concatenate([f for j, f in enumerate(folds) if j != k])
            error = train_fold(data, train[:900], test, 1, 10 * repeat + k)
            print(f"repeat {repeat} fold {k} error {error:.4f}", flush=True)
            if time.time() - started > 600:
                break
        repeat += 1


if __name__ == "__main__":
    main()
