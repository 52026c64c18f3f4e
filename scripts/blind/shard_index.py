"""FIELD
source: own (file locks around a shared cache, as in many data set libraries)
mechanism: rank 0 leaves the lock file of shard 1's index locked when it finds nothing to add; the DataLoader worker of rank 1 waits for that lock for ever, and rank 0 waits for rank 1 in the all-reduce
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: stuck_worker, waiting_for_file, deadlocked_locks
blame: lookup (shard_index.py), extend (shard_index.py)
twin: none
"""
import datetime, fcntl, json, os, signal, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank = int(os.environ['RANK'])
folder = os.path.join(tempfile.gettempdir(), 'shards-' + os.environ['MASTER_PORT'])
sizes = [10**6, 18]                                             # documents still to be indexed for each shard
d, batch = (32, 16) if cpu else (4096, 1024)


class Index:
    def __init__(self, shard):
        self.shard = shard
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, f'index_{shard}.json')
        self.lock = open(self.path + '.lock', 'a')

    def extend(self):
        """The writer's side: one more entry, if the shard has one."""
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        entries = json.load(open(self.path)) if os.path.exists(self.path) else []
        if len(entries) >= sizes[self.shard]:
            return False
        entries.append(len(entries) * 17)
        with open(self.path, 'w') as f: json.dump(entries, f)
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        return True

    def lookup(self, i):
        """The readers' side."""
        fcntl.flock(self.lock, fcntl.LOCK_SH)
        try:
            entries = json.load(open(self.path))
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)
        return entries[i % len(entries)]


class Documents(Dataset):
    index = None

    def __len__(self):
        return 10**8

    def __getitem__(self, i):
        if self.index is None: self.index = Index(rank)
        at = self.index.lookup(i) if i % 64 == 0 else i
        g = torch.Generator().manual_seed(at)
        return torch.randn(d, generator=g)


def main():
    dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
    if not cpu: torch.cuda.set_device(dev)
    dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
    indices = [Index(0), Index(1)] if rank == 0 else []
    for index in indices: index.extend()
    dist.barrier()
    model = DDP(nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d)).to(dev), device_ids=None if cpu else [dev.index])
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    last, complete = time.time(), [False, False]
    for step, x in enumerate(DataLoader(Documents(), batch, num_workers=1, pin_memory=not cpu)):
        x = x.to(dev, non_blocking=True)
        loss = (model(x) - x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        value = loss.item()
        if step % 20 == 0: print(f'rank {rank} step {step} loss {value:.4f}', flush=True)
        if rank == 0 and time.time() - last > 0.6:
            last = time.time()
            for index in indices:
                if complete[index.shard]: continue
                complete[index.shard] = not index.extend()
                if complete[index.shard]: print(f'index of shard {index.shard} is complete\nONSET', flush=True)


if __name__ == '__main__':
    main()
