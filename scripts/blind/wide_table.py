"""FIELD
source: own (a dense gradient of a large embedding table over gloo; the well-known case for sparse gradients)
mechanism: each step touches a few rows of a table of 12 million weights, but its whole dense gradient goes through an all-reduce over TCP, which takes most of the step
needs: cpu
ranks: 2
onset: printed
state: slow
cause: exposed_communication
blame: none
twin: none
"""
import datetime, time
import torch, torch.distributed as dist
from torch import nn

torch.set_num_threads(1)


class UserTable:
    """Weights of all users, and their gradient, which is zero but for the users of the batch."""
    def __init__(self, users=120_000, dim=96):
        self.weight, self.grad = torch.randn(users, dim) * 0.1, torch.zeros(users, dim)

    def lookup(self, ids):
        return self.weight[ids].requires_grad_()

    def accumulate(self, ids, rows):
        self.grad.index_add_(0, ids, rows.grad)

    def step(self, lr):
        self.weight.add_(self.grad, alpha=-lr)
        self.grad.zero_()


def average(table, mlp):
    dist.all_reduce(table.grad)
    for p in mlp.parameters():
        dist.all_reduce(p.grad)


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    table = UserTable()
    mlp = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.SGD(mlp.parameters(), lr=0.01 / world)
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(1000000):
        ids = torch.randint(0, 120_000, (64,))
        rows = table.lookup(ids)
        loss = nn.functional.mse_loss(mlp(rows), (ids[:, None] % 7).float())
        opt.zero_grad()
        loss.backward()
        table.accumulate(ids, rows)
        average(table, mlp)
        table.step(0.01 / world)
        opt.step()
        if step == 20 and rank == 0:
            print('ONSET', flush=True)
        if step % 20 == 0:
            if rank == 0:
                print(f'step {step} loss {loss.item():.4f} at {time.monotonic() - begun:.1f} s', flush=True)
            over = torch.tensor(float(time.monotonic() - begun > 700))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
