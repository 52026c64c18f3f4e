"""FIELD
source: own
mechanism: a study of rank skew delays rank 1's card with a spinning kernel; at one point the delay is given in microseconds where milliseconds are meant to be, so rank 1's kernel runs for hours and rank 0 waits in the all-reduce
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: stuck_kernel
blame: rank 1
twin: none
"""
import datetime, os, signal, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
d, rows = (32, 64) if cpu else (4096, 8192)
schedule = [(400, {0: 0, 1: 2}), (400, {0: 0, 1: 10}), (400, {0: 0, 1: 20_000_000})]        # steps, delay of each rank


def delay(ms):
    if cpu: time.sleep(ms / 1000)
    elif ms: torch.cuda._sleep(int(ms * 1_700_000))


def measure(model, opt, steps, ms):
    began = time.time()
    for _ in range(steps):
        x = torch.randn(rows, d, device=dev)
        delay(ms)
        with torch.autocast(dev.type, torch.bfloat16):
            loss = (model(x) - x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        last = loss.item()
    return (time.time() - began) / steps, last


model = DDP(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)).to(dev), device_ids=None if cpu else [local])
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for steps, delays in schedule:
    if rank == 1 and delays[1] > 1000: print('ONSET', flush=True)
    each, last = measure(model, opt, steps, delays[rank])
    print(f'rank {rank}: delays {delays}, {1000 * each:.2f} ms a step, loss {last:.4f}', flush=True)
