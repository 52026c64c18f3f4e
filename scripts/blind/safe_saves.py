"""FIELD
source: pytorch/torchtitan#1301 (saving a checkpoint takes minutes) and mosaicml/llm-foundry#733; here saved far too often
mechanism: rank 0 saves, compresses and syncs a checkpoint every 4 steps while the other ranks wait in the barrier, so that most of the time goes into checkpoints
needs: cpu
ranks: 3
onset: printed
state: slow
cause: slow_checkpoint
blame: save_checkpoint (safe_saves.py)
twin: none
"""
import datetime, io, os, tempfile, time, zlib
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


def save_checkpoint(model, opt, step, folder):
    buffer = io.BytesIO()
    torch.save({'step': step, 'model': model.module.state_dict(), 'optimizer': opt.state_dict()}, buffer)
    path = os.path.join(folder, f'step-{step:06d}.pt.z')
    with open(path + '.tmp', 'wb') as out:
        out.write(zlib.compress(buffer.getbuffer(), 6))
        out.flush()
        os.fsync(out.fileno())
    os.replace(path + '.tmp', path)
    for name in sorted(os.listdir(folder))[:-2]:
        os.remove(os.path.join(folder, name))


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    folder = tempfile.mkdtemp(prefix='safe_saves-') if rank == 0 else None
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 32)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(1000000):
        x = torch.randn(96, 256)
        loss = nn.functional.cross_entropy(model(x), x[:, :32].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 200 and rank == 0:
            print('saving every 4 steps from here\nONSET', flush=True)
        if step >= 200 and step % 4 == 0:
            if rank == 0:
                save_checkpoint(model, opt, step, folder)
            dist.barrier()
        if step % 20 == 0:
            if rank == 0:
                print(f'step {step} loss {loss.item():.4f}', flush=True)
            over = torch.tensor(float(time.monotonic() - begun > 700))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
