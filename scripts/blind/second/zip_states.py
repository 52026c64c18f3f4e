"""FIELD
source: https://github.com/deepchem/deepchem/issues/458 ("Checkpointing is significantly slowing down training"; it spends more time saving than computing)
mechanism: after the warm-up rank 0 stores the whole state xz-compressed every twenty steps, which takes several times as long as the steps, while the other rank waits at the barrier
needs: cpu
ranks: 2
onset: printed
state: slow
cause: slow_checkpoint, straggling_rank
blame: store_state (zip_states.py)
twin: none
"""
import datetime, lzma, os, shutil, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(96, 384), nn.Linear(384, 12)
        self.mid = nn.ModuleList(nn.Linear(384, 384) for _ in range(2))
    def forward(self, x):
        h = torch.relu(self.inp(x))
        for layer in self.mid:
            h = h + torch.relu(layer(h))
        return self.out(h)

def store_state(folder, step, model, opt):
    path = os.path.join(folder, f'state{step % 3}.pt.xz')
    with lzma.open(path, 'wb', preset=1) as out:
        torch.save({'step': step, 'model': model.module.state_dict(), 'opt': opt.state_dict()}, out)
    return os.path.getsize(path)

def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tower())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    folder = tempfile.mkdtemp(prefix='states_') if rank == 0 else None
    torch.manual_seed(rank + 1)
    warmup, begun, finish = 150, time.time(), torch.zeros(1)
    for step in range(10**9):
        x = torch.randn(48, 96)
        loss = nn.functional.cross_entropy(model(x), x[:, :12].argmax(1))
        opt.zero_grad(); loss.backward(); opt.step()
        if step == warmup and rank == 0:
            print('ONSET', flush=True)
        if step >= warmup and step % 20 == 0:
            if rank == 0:
                size = store_state(folder, step, model, opt)
                print(f'{time.time() - begun:.0f} s step {step} loss {loss.item():.4f} stored {size >> 20} MiB', flush=True)
                finish.fill_(time.time() - begun > 700)
            dist.broadcast(finish, 0)
            if finish.item():
                break
    if rank == 0:
        shutil.rmtree(folder)
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
