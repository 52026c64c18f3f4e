"""FIELD
source: ultralytics/ultralytics#26085 (a DataLoader worker is forked while a thread of the parent holds a lock, and starts with the lock held); also pytorch/pytorch#1355
mechanism: on rank 1 a thread rebuilds the index under a lock while the workers of the next epoch are forked; the worker waits for its copy of the lock, rank 1 for the worker, rank 0 in the all-reduce
needs: cpu
ranks: 2
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks, stalled_collective
blame: lookup (title_index.py)
twin: none
"""
import datetime, threading, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.set_num_threads(1)


class TitleIndex:
    def __init__(self, n):
        self.mutex, self.n = threading.Lock(), n
        self.entries = self.build()

    def build(self):
        return {f't{(k * 7919) % self.n}': k for k in range(self.n)}

    def lookup(self, key):
        with self.mutex:
            return self.entries[key]

    def rebuild_in_background(self):
        begun = threading.Event()

        def work():
            with self.mutex:
                begun.set()
                for _ in range(12):
                    fresh = self.build()
                    time.sleep(0.05)
                self.entries = fresh

        threading.Thread(target=work, name='index', daemon=True).start()
        begun.wait()


class Titles(Dataset):
    def __init__(self, n=6000):
        self.index = TitleIndex(n)

    def __len__(self):
        return self.index.n

    def __getitem__(self, i):
        row = self.index.lookup(f't{i}')
        x = torch.randn(96, generator=torch.Generator().manual_seed(row))
        return x, int(x[:8].argmax())


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    data = Titles()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=1, multiprocessing_context='fork')
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(96, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 8)))
    optim = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(2000):
        sampler.set_epoch(epoch)
        if rank == 1 and epoch == 6:
            data.index.rebuild_in_background()
            print(f'epoch {epoch}: new titles\nONSET', flush=True)
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            optim.zero_grad()
            loss.backward()
            optim.step()
        if rank == 0:
            print(f'epoch {epoch} loss {loss.item():.4f}', flush=True)


if __name__ == '__main__':
    main()
