"""FIELD
source: own
mechanism: rank 0 writes one checkpoint of several GB through gzip, layer by layer on one core for five minutes; rank 1 waits for it in a barrier; then training goes on
needs: gpu2
ranks: 2
onset: printed
state: busy
cause: checkpointing, waiting_on_work
blame: save (packed_save.py)
twin: none
"""
import datetime, gzip, os, signal, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
d, layers, rows = (256, 4, 64) if cpu else (8192, 6, 4096)


def save(model, folder, window):
    """Packs the weights layer by layer, one averaged snapshot after the other, as far as the time window allows."""
    began, files, size = time.time(), 0, 0
    while time.time() - began < window:
        snapshot, layer = divmod(files, layers)
        weights = {k: v.cpu() for k, v in model.module[2 * layer].state_dict().items()}
        path = os.path.join(folder, f'snapshot{snapshot}-layer{layer}.pt.gz')
        with gzip.open(path, 'wb', compresslevel=6) as f: torch.save(weights, f)
        files, size = files + 1, size + os.path.getsize(path)
    print(f'{files} files, {size / 1e9:.2f} GB', flush=True)


def train(model, opt, steps):
    for step in range(steps):
        x = torch.randn(rows, d, device=dev)
        with torch.autocast(dev.type, torch.bfloat16):
            loss = (model(x) - x).float().square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        value = loss.item()
        if rank == 0 and step % 25 == 0: print(f'step {step} loss {value:.4f}', flush=True)


with dev: net = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(d, d), nn.GELU())])
model = DDP(net, device_ids=None if cpu else [local])
opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
train(model, opt, 10)
began = time.time()
train(model, opt, 20)
t = torch.tensor([(time.time() - began) / 20], device=dev)
dist.broadcast(t, 0)
train(model, opt, int(8 / t.item()))
if rank == 0:
    print('ONSET', flush=True)
    began = time.time()
    with tempfile.TemporaryDirectory(prefix='ckpt-') as folder: save(model, folder, 8 if cpu else 330)
    print(f'checkpoint took {time.time() - began:.0f} s', flush=True)
dist.barrier()
train(model, opt, 50 if cpu else 10**9)
