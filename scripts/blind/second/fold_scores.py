"""FIELD
source: own
mechanism: each rank scores its own fold with bootstrap confidence intervals between two epochs; rank 1's takes more than five minutes, those of the others less, so they wait for it in the gathering of the results
needs: cpu
ranks: 3
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: none
twin: none
"""
import datetime, os, time
import numpy as np
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

FOLD_SECONDS = {0: 20, 1: 340, 2: 70}          # the confidence interval gets as many rounds as fit

def fold(rank, n=4000):
    gen = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(n, 32, generator=gen)
    return x, (x[:, 0] * x[:, 1] > 0).long()

@torch.no_grad()
def score(model, rank):
    model.eval()
    x, y = fold(rank)
    until, values = time.time() + FOLD_SECONDS[rank], []
    while time.time() < until:
        pick = torch.randint(0, len(x), (len(x),))
        hits = [(model(xs).argmax(1) == ys).float().mean().item() for xs, ys in zip(x[pick].split(250), y[pick].split(250))]
        values.append(float(np.mean(hits)))
    model.train()
    return rank, len(values), np.percentile(values, [2.5, 50, 97.5]).round(4).tolist()

def train(model, opt, seconds, rank):
    until, step, over = time.time() + seconds, 0, torch.zeros(1)
    while not over.item():
        x = torch.randn(64, 32)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] * x[:, 1] > 0).long())
        opt.zero_grad(); loss.backward(); opt.step()
        step += 1
        if step % 50 == 0:
            over.fill_(time.time() > until)
            dist.broadcast(over, 0)
            if rank == 0: print(f'step {step} loss {loss.item():.4f}', flush=True)

def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DDP(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch, seconds in enumerate((10, 45)):
        train(model, opt, seconds, rank)
        if epoch == 0:
            if rank == 0: print('ONSET', flush=True)
            mine, table = score(model.module, rank), [None] * dist.get_world_size()
            dist.all_gather_object(table, mine)
            if rank == 0: print('folds', table, flush=True)
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
