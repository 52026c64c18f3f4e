"""FIELD
source: recommenders-team/recommenders#2163 and RUCAIBox/RecBole#2193 (rejection sampling of a negative never ends for a user who has every item)
mechanism: on rank 1 a DataLoader worker draws items until it finds one that the user has not seen, for a user who has seen the whole catalogue; rank 0 waits in all_reduce
needs: cpu
ranks: 2
onset: printed
state: hung
cause: stuck_worker, stalled_collective
blame: negative_for (bpr_ranks.py)
twin: none
"""
import datetime

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
ITEMS_PER_MARKET = [900, 700, 500, 40]


class Interactions(Dataset):
    def __init__(self, market, rank):
        rng = np.random.default_rng(100 * market + rank)
        self.n_items = ITEMS_PER_MARKET[market % len(ITEMS_PER_MARKET)]
        sizes = rng.integers(5, 45, size=600)
        if rank == 0:
            sizes = np.minimum(sizes, self.n_items - 5)
        self.history = [rng.permutation(self.n_items)[:s] for s in sizes]
        self.seen = [set(h.tolist()) for h in self.history]
        self.pairs = [(u, int(i)) for u, h in enumerate(self.history) for i in h]
        rng.shuffle(self.pairs)

    def __len__(self):
        return len(self.pairs)

    def negative_for(self, user):
        item = np.random.randint(self.n_items)
        while item in self.seen[user]:
            item = np.random.randint(self.n_items)
        return item

    def __getitem__(self, k):
        user, item = self.pairs[k]
        return user, item, self.negative_for(user)


class Factors(nn.Module):
    def __init__(self, users=600, items=900, dim=48):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)

    def forward(self, u, i, j):
        u = self.user(u)
        return -nn.functional.logsigmoid((u * (self.item(i) - self.item(j))).sum(1)).mean()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = Factors()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for market in range(40):
        data = Interactions(market, rank)
        if rank == 1 and data.n_items < 45:
            print("ONSET", flush=True)
        loader = DataLoader(data, batch_size=32, num_workers=1)
        for step, (u, i, j) in zip(range(350), loader):
            loss = model(u, i, j)
            opt.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(flat)
            for p, g in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
                p.grad.copy_(g.view_as(p) / dist.get_world_size())
            opt.step()
        if rank == 0:
            print(f"market {market} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
