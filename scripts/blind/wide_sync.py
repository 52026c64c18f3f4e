"""FIELD
source: NVIDIA/nccl#631 and NVIDIA/nccl#1439 (NCCL_P2P_DISABLE=1 kept as a workaround; communication then goes through host memory)
mechanism: a wide model with a small batch, and peer-to-peer is off in NCCL: the all-reduce of the gradients through host memory takes far longer than the computation that could hide it
needs: gpu2
ranks: 2
onset: printed
state: slow
cause: exposed_communication
blame: none
twin: none
"""
import datetime, os, signal, time
os.environ.setdefault('NCCL_P2P_DISABLE', '1')                  # needed on the old workstation
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
d, layers, rows = (64, 2, 8) if cpu else (8192, 10, 256)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers: x = x + torch.tanh(layer(x))
        return x


with dev: net = Wide()
model = DDP(net, device_ids=None if cpu else [local], gradient_as_bucket_view=True)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
start, told = time.time(), False
for step in range(10**9):
    x = torch.randn(rows, d, device=dev)
    with torch.autocast(dev.type, torch.bfloat16):
        loss = model(x).float().square().mean()
    opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
    if step % 20 == 0: print(f'rank {rank} step {step} loss {loss.item():.4f}', flush=True)
    if rank == 0 and not told and time.time() - start > 10:
        told = True
        print('ONSET', flush=True)
