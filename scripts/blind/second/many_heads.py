"""FIELD
source: HRNet/HRNet-Object-Detection#9 and facebookresearch/fairscale#327 (one all_reduce per parameter instead of flat buckets)
mechanism: a model with 1,400 small tensors averages each gradient with its own blocking all_reduce; the ranks spend the step in the latency of small collectives
needs: cpu
ranks: 2
onset: printed
state: slow
cause: exposed_communication
blame: average_gradients (many_heads.py)
twin: none
"""
import datetime
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)


class MultiTask(nn.Module):
    def __init__(self, tasks=700, dim=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, dim), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(dim, 1) for _ in range(tasks))

    def forward(self, x):
        h = self.trunk(x)
        weight = torch.cat([head.weight for head in self.heads])
        bias = torch.cat([head.bias for head in self.heads])
        return nn.functional.linear(h, weight, bias)


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=13))
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = MultiTask()
    target = torch.randn(64, 700) / 8
    opt = torch.optim.SGD(model.parameters(), lr=0.05, foreach=True)
    torch.manual_seed(100 + rank)
    started, synced = time.time(), False
    for step in range(100000):
        x = torch.randn(64, 64)
        loss = nn.functional.mse_loss(model(x), x @ target)
        opt.zero_grad()
        loss.backward()
        if step >= 250:
            if not synced:
                synced = True
                for p in model.parameters():
                    dist.broadcast(p.data, 0)
                if rank == 0:
                    print("ONSET", flush=True)
            average_gradients(model)
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} at {time.time() - started:.0f} s", flush=True)
        if step % 100 == 0 and step:
            elapsed = torch.tensor([time.time() - started])
            dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
            if elapsed > 600:
                break


if __name__ == "__main__":
    main()
