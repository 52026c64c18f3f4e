"""FIELD
source: pytorch/pytorch#23138 and pytorch/examples#1078 (torch.load without map_location puts every rank's tensors on GPU 0)
mechanism: the teacher was saved from cuda:0 and is loaded without map_location, so both ranks run the large teacher on card 0; card 1 has only the small student of rank 1
needs: gpu2
ranks: 2
onset: printed
state: slow
cause: shared_gpu
blame: none
twin: none
"""
import datetime, os, signal, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
path = os.path.join(tempfile.gettempdir(), f'teacher-{os.environ["MASTER_PORT"]}.pt')
d, wide, depth, rows = (32, 64, 2, 32) if cpu else (2048, 8192, 8, 16384)


def mlp(width, n):
    with dev: return nn.Sequential(nn.Linear(d, width), nn.GELU(), *[m for _ in range(n) for m in (nn.Linear(width, width), nn.GELU())], nn.Linear(width, d))


if rank == 0: torch.save(mlp(wide, depth).to(torch.bfloat16).eval(), path)
dist.barrier()
teacher = torch.load(path, weights_only=False).requires_grad_(False)
where = next(teacher.parameters()).device
dist.barrier()
if rank == 0: os.remove(path)
student = DDP(mlp(1024 if not cpu else 16, 1), device_ids=None if cpu else [local])
opt = torch.optim.AdamW(student.parameters(), lr=1e-4)
start, told = time.time(), False
for step in range(10**9):
    x = torch.randn(rows, d, device=dev)
    with torch.no_grad():
        target = teacher(x.to(where, torch.bfloat16)).to(dev)
    with torch.autocast(dev.type, torch.bfloat16):
        loss = (student(x).float() - target.float()).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 20 == 0: print(f'rank {rank} step {step} loss {loss.item():.5f}', flush=True)
    if rank == 0 and not told and time.time() - start > 10: told = True; print('ONSET', flush=True)
