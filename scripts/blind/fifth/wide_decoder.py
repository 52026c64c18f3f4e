"""FIELD
source: own: FSDP with reshard_after_forward and a batch of 1 on a slow interconnect
mechanism: hand-written full sharding: each layer's weights are gathered in forward and again in backward, gradients reduced, all synchronously; with a batch of 2 the ranks do little else
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: slow
cause: exposed_communication
blame: none
twin: none
"""
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F

cfg = SimpleNamespace(width=768, depth=5, batch=2, lr=1e-3, log_every=10, world=2)


class Gathered(torch.autograd.Function):
    """Linear layer whose weight lives in shards: gathered for use, freed after it."""

    @staticmethod
    def forward(ctx, x, shard, width):
        full = unshard(shard, width)
        ctx.save_for_backward(x, shard)
        ctx.width = width
        return x @ full.t()

    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        full = unshard(shard, ctx.width)
        dx = dy @ full
        dw = (dy.t() @ x).flatten()
        dist.all_reduce(dw)
        return dx, dw.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size(), None


def unshard(shard, width):
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard.detach())
    return torch.cat(parts).view(width, width)


class ShardedMLP:
    def __init__(self, rank):
        torch.manual_seed(2)
        n = cfg.width * cfg.width // cfg.world
        self.shards = []
        for _ in range(cfg.depth):
            w = torch.randn(cfg.width, cfg.width) / cfg.width**0.5
            self.shards.append(w.flatten()[rank * n:(rank + 1) * n].clone().requires_grad_())
        self.momentum = [torch.zeros_like(s) for s in self.shards]

    def loss(self, x, target):
        for shard in self.shards:
            x = x + F.gelu(Gathered.apply(F.layer_norm(x, x.shape[-1:]), shard, cfg.width))
        return F.mse_loss(x, target)

    @torch.no_grad()
    def step(self):
        for s, m in zip(self.shards, self.momentum, strict=True):
            m.mul_(0.9).add_(s.grad)
            s.sub_(m, alpha=cfg.lr)
            s.grad = None


def batches(seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(cfg.batch, cfg.width, generator=g)
        yield x, x.roll(3, -1)


def main():
    t0 = time.monotonic()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = ShardedMLP(rank)
    announced = False
    for i, (x, y) in enumerate(batches(rank)):
        loss = model.loss(x, y)
        loss.backward()
        model.step()
        if rank == 0 and i % cfg.log_every == 0:
            rate = (i + 1) / (time.monotonic() - t0)
            print(f"it {i} loss {loss.item():.4f} {rate:.1f} it/s", flush=True)
            if not announced and time.monotonic() - t0 > 8:
                announced = True
                print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        main()
    else:
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = str(s.getsockname()[1])
        ps = [subprocess.Popen([sys.executable, os.path.abspath(__file__)],
                               env=os.environ | {"RANK": str(r), "WORLD_SIZE": str(cfg.world),
                                                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
              for r in range(cfg.world)]
        for p in ps:
            p.wait()
