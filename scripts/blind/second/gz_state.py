"""FIELD
source: https://github.com/epfLLM/Megatron-LLM/issues/69 (a checkpoint takes 5 to 15 minutes; closed as unavoidable)
mechanism: rank 0 writes some 12 GB of parameters and optimizer state through gzip, for five minutes or more, while rank 1 waits at the barrier; then training goes on
needs: gpu2
ranks: 2
onset: printed
state: busy
cause: checkpointing, waiting_on_work
blame: none
twin: none
"""
import datetime, gzip, os, shutil, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

cpu = os.environ.get('FIELD_CPU') == '1'
WIDTH, DEPTH, BATCH = (1024, 16, 16) if cpu else (8192, 16, 2048)
SETTLE, AFTER = (10, 45)

def train(model, opt, dev, rank, seconds):
    begun, over = time.time(), torch.zeros(1, device=dev)
    for step in range(10**9):
        x = torch.randn(BATCH, WIDTH, device=dev)
        with torch.autocast(dev.type, torch.bfloat16):
            loss = (model(x).float() - x.sign()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 5 == 0:
            if rank == 0: print(f'step {step} loss {loss.item():.4f}', flush=True)
            over.fill_(float(time.time() - begun > seconds))
            dist.broadcast(over, 0)
            if over.item(): return

def save(model, opt, path):
    with gzip.open(path + '.tmp', 'wb', compresslevel=9) as out:
        torch.save({'model': model.module.state_dict(), 'optimizer': opt.state_dict()}, out)
    os.replace(path + '.tmp', path)

def main():
    torch.set_num_threads(1)
    rank = int(os.environ['RANK'])
    dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
    if not cpu: torch.cuda.set_device(dev)
    dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    model = DDP(net.to(dev), gradient_as_bucket_view=True)
    opt = torch.optim.Adam(model.parameters(), lr=1e-5)
    torch.manual_seed(rank + 1)
    train(model, opt, dev, rank, SETTLE)
    if rank == 0:
        folder = tempfile.mkdtemp(prefix='gzstate_')
        print('ONSET', flush=True)
        begun, path = time.time(), os.path.join(folder, 'epoch1.pt.gz')
        save(model, opt, path)
        print(f'saved {os.path.getsize(path) / 1e9:.2f} GB in {time.time() - begun:.0f} s', flush=True)
    dist.barrier()
    train(model, opt, dev, rank, AFTER)
    if rank == 0: shutil.rmtree(folder)
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
