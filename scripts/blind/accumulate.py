"""FIELD
source: own
mechanism: two ranks accumulate gradients over eight large micro-batches in no_sync and exchange them in the ninth, so both cards are busy with matrix products nearly all of the time
needs: gpu2
ranks: 2
onset: printed
state: healthy
cause: gpu_bound, balanced
blame: none
twin: none
"""
import contextlib, datetime, os, signal, time
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
d, depth, rows, classes, micro_batches = (32, 2, 64, 10, 9) if cpu else (8192, 4, 16384, 1024, 9)


class GatedLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value, self.out = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x):
        return x + self.out(F.silu(self.gate(x)) * self.value(x))


torch.manual_seed(0)
with dev: net = nn.Sequential(*[GatedLayer() for _ in range(depth)], nn.Linear(d, classes)).to(torch.bfloat16)
model = DDP(net, device_ids=None if cpu else [local])
opt = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not cpu)
torch.manual_seed(1 + rank)
pool = [(torch.randn(rows, d, device=dev, dtype=torch.bfloat16), torch.randint(0, classes, (rows,), device=dev)) for _ in range(4)]
start, told = time.time(), False
for step in range(10**9):
    for i in range(micro_batches):
        x, y = pool[(step + i) % len(pool)]
        with contextlib.nullcontext() if i == micro_batches - 1 else model.no_sync():
            loss = F.cross_entropy(model(x), y) / micro_batches
            loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    if step % 5 == 0: print(f'rank {rank} step {step} loss {loss.item() * micro_batches:.4f}', flush=True)
    if rank == 0 and not told and time.time() - start > 12: told = True; print('ONSET', flush=True)
