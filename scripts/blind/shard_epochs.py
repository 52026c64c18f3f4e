"""FIELD
source: pytorch/pytorch#33148 (DDP with a different number of input batches per rank; also Lightning #9851, #20404)
mechanism: the shards of rank 1 hold more batches than those of rank 0; rank 0 waits in the barrier at the end of the epoch, rank 1 in the gradient all-reduce of a further step
needs: cpu
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: none
"""
import datetime, os, tempfile
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
SHARDS = {'part-00': 39936, 'part-01': 43008, 'part-02': 40960, 'part-03': 48128}      # rows in each


class Rows(IterableDataset):
    def __init__(self, names, seed):
        self.names, self.seed = names, seed

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed)
        for name in self.names:
            left = SHARDS[name]
            while left > 0:
                n = min(256, left)
                x = torch.randn(n, 192, generator=gen)
                yield x, (x[:, :10] + 0.3 * x[:, 10:20]).argmax(1)
                left -= n


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    names = sorted(SHARDS)[rank::world]
    loader = DataLoader(Rows(names, seed=rank), batch_size=None)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(192, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    out = os.path.join(tempfile.gettempdir(), f'shard_epochs-{os.getppid()}.pt')
    for epoch in range(20):
        seen = 0
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)
            if step % 100 == 0:
                print(f'[{rank}] epoch {epoch} step {step} loss {loss.item():.4f}', flush=True)
        print(f'[{rank}] epoch {epoch}: {seen} rows', flush=True)
        if rank == 0:
            print('ONSET', flush=True)
        dist.barrier()
        if rank == 0:
            torch.save(model.module.state_dict(), out)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
