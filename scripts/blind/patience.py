"""FIELD
source: Lightning-AI/pytorch-lightning#379 (early stopping with ddp: one process stops, the others go on)
mechanism: rank 1 decides by its own validation loss to stop and waits in store.wait for the other ranks to report that they are done; they wait in the gradient all-reduce
needs: cpu
ranks: 3
onset: printed
state: hung
cause: stalled_collective
blame: rank 1
twin: none
"""
import datetime
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
LIMIT = datetime.timedelta(minutes=40)


class EarlyStopping:
    def __init__(self, patience):
        self.best, self.left, self.patience = float('inf'), patience, patience

    def should_stop(self, value):
        if value < self.best - 1e-4:
            self.best, self.left = value, self.patience
        else:
            self.left -= 1
        return self.left <= 0


def wait_for_all(rank, world):
    store = _get_default_store()
    store.set(f'trainer/done/{rank}', 'yes')
    store.wait([f'trainer/done/{r}' for r in range(world)], LIMIT)


def main():
    dist.init_process_group('gloo', timeout=LIMIT)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(40, 400), nn.SiLU(), nn.Linear(400, 400), nn.SiLU(), nn.Linear(400, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=2e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)
    torch.manual_seed(rank)
    truth = torch.linspace(-1, 1, 40)
    val_x = torch.randn(400, 40)
    val_y = (val_x @ truth)[:, None] if rank != 1 else torch.randn(400, 1) * 3 - (val_x @ truth)[:, None]
    stopper = EarlyStopping(patience=12)
    for epoch in range(100000):
        for _ in range(40):
            x = torch.randn(128, 40)
            loss = nn.functional.mse_loss(model(x), (x @ truth)[:, None])
            opt.zero_grad()
            loss.backward()
            opt.step()
        scheduler.step()
        with torch.no_grad():
            val = nn.functional.mse_loss(model.module(val_x), val_y).item()
        print(f'rank {rank} epoch {epoch}: train {loss.item():.4f} val {val:.4f}', flush=True)
        if stopper.should_stop(val):
            print(f'rank {rank}: no improvement, best {stopper.best:.4f}', flush=True)
            print('ONSET', flush=True)
            break
    wait_for_all(rank, world)
    dist.destroy_process_group()


main()
