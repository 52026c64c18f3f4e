"""FIELD
source: pytorch/torchtitan#148 and #696 (Python's garbage collector makes stragglers)
mechanism: every rank calls gc.collect() in each step to keep its memory low; rank 1 also holds an index of millions of Python objects, so its collection takes several hundred milliseconds and rank 0 waits in the all-reduce
needs: gpu2
ranks: 2
onset: printed
state: slow
cause: straggling_rank, garbage_collection
blame: rank 1
twin: none
"""
import datetime, gc, os, signal, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
d, rows, entries = (32, 64, 100_000) if cpu else (4096, 4096, 2_500_000)


class Retrieval:
    """Rank 1 also keeps the passages' index."""
    def __init__(self, n):
        self.passages = [[i, [i % 977]] for i in range(n)]

    def neighbours(self, i):
        return self.passages[i % len(self.passages)][1]


def train_step(model, opt, x):
    with torch.autocast(dev.type, torch.bfloat16):
        loss = (model(x) - x).square().mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach()


model = DDP(nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(d, d), nn.GELU())]).to(dev), device_ids=None if cpu else [local])
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(20): train_step(model, opt, torch.randn(rows, d, device=dev)).item()
began = time.time()
for step in range(50): train_step(model, opt, torch.randn(rows, d, device=dev)).item()
t = torch.tensor([(time.time() - began) / 50], device=dev)
dist.broadcast(t, 0)
for step in range(int(6 / t.item())): train_step(model, opt, torch.randn(rows, d, device=dev)).item()
index = Retrieval(entries) if rank == 1 else None
if rank == 1: print('index is loaded\nONSET', flush=True)
for step in range(10**9):
    if index: index.neighbours(step)
    loss = train_step(model, opt, torch.randn(rows, d, device=dev))
    gc.collect()
    if step % 20 == 0: print(f'rank {rank} step {step} loss {loss.item():.4f}', flush=True)
