"""FIELD
source: https://github.com/pytorch/pytorch/issues/67972 (ranks exchange settings through a TCPStore and one hangs in get)
mechanism: rank 0 publishes the learning rate of a phase in the store only if it has changed; in the fourth phase it has not, so rank 1 waits for the key and rank 0 for rank 1 in the all-reduce
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: stalled_collective, blocked_network
blame: rank 1
twin: none
"""
import datetime, math, os
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

cpu = os.environ.get('FIELD_CPU') == '1'
LIMIT = datetime.timedelta(minutes=40)

class Planner:
    """Rank 0 decides on the learning rate of each phase, the others follow."""
    def __init__(self, rank, peak):
        self.rank, self.peak, self.last = rank, peak, None
        host, port = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']) + 17
        self.store = dist.TCPStore(host, port, dist.get_world_size(), rank == 0, LIMIT)

    def lr(self, phase, plateau):
        if self.rank:
            return float(self.store.get(f'lr/{phase}'))
        lr = self.peak * (1.0 if plateau else 0.5 ** phase)
        lr = max(lr, self.peak / 4)
        if lr != self.last:
            self.store.set(f'lr/{phase}', repr(lr))
            self.last = lr
        return lr

class Encoder(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth))
    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

def main():
    torch.set_num_threads(1)
    rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
    dev = torch.device('cpu') if cpu else torch.device('cuda', local)
    if not cpu: torch.cuda.set_device(dev)
    dist.init_process_group('gloo' if cpu else 'nccl', timeout=LIMIT)
    width, batch, depth, steps = (64, 32, 2, 300) if cpu else (2048, 2048, 6, 60)
    model = DDP(Encoder(width, depth).to(dev))
    opt = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    planner = Planner(rank, 0.02)
    for phase in range(1000):
        if phase == 3 and rank == 1: print('ONSET', flush=True)
        for group in opt.param_groups:
            group['lr'] = planner.lr(phase, plateau=False)
        if rank == 0: print(f'phase {phase} lr {opt.param_groups[0]["lr"]}', flush=True)
        for step in range(steps):
            x = torch.randn(batch, width, device=dev)
            loss = (model(x) - x.flip(0)).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
            if step % 20 == 0 and rank == 0: print(f'phase {phase} step {step} loss {loss.item():.4f}', flush=True)

if __name__ == '__main__':
    main()
