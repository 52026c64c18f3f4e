"""FIELD
source: meta-pytorch/torchrec#4149 and NVIDIA/nvalchemi-toolkit#143 (ranks issue the collectives of overlapping groups in different order)
mechanism: three experts live on overlapping pairs of ranks; each rank averages its busiest expert first, so that ranks 0, 1 and 2 come to wait in three different groups, each for the next rank
needs: cpu
ranks: 3
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: none
"""
import datetime
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
HOSTS = {"code": [0, 1], "text": [1, 2], "math": [0, 2]}


class SharedExperts(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        rank = dist.get_rank()
        self.groups = {name: dist.new_group(hosts) for name, hosts in HOSTS.items()}
        self.names = [name for name, hosts in HOSTS.items() if rank in hosts]
        self.hash = torch.randn(dim, generator=torch.Generator().manual_seed(rank))
        self.experts = nn.ModuleDict({n: nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, dim)) for n in self.names})
        self.load = dict.fromkeys(self.names, 0)

    def forward(self, x):
        choice = (x @ self.hash > 0).long()
        out = torch.zeros_like(x)
        for i, name in enumerate(self.names):
            rows = (choice == i).nonzero().squeeze(1)
            self.load[name] = len(rows)
            out = out.index_add(0, rows, self.experts[name](x[rows]))
        return out

    def average(self, busiest_first):
        order = self.names
        if busiest_first:
            order = sorted(self.names, key=self.load.get, reverse=True)
        for name in order:
            params = list(self.experts[name].parameters())
            flat = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in params])
            dist.all_reduce(flat, group=self.groups[name])
            for p, part in zip(params, flat.split([p.numel() for p in params])):
                p.grad = part.view_as(p) / 2


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank = dist.get_rank()
    torch.manual_seed(5)
    layer = SharedExperts()
    opt = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    torch.manual_seed(50 + rank)
    for step in range(100000):
        x = torch.randn(256, 128)
        loss = nn.functional.mse_loss(layer(x), x.roll(1, 1))
        opt.zero_grad()
        loss.backward()
        if step == 700 and rank == 0:
            print("ONSET", flush=True)
        layer.average(busiest_first=step >= 700)
        opt.step()
        if step < 700:
            time.sleep(0.003)
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} load {layer.load}", flush=True)


if __name__ == "__main__":
    main()
