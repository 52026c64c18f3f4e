"""FIELD
source: pytorch/pytorch#141069 (IterableDataset with DDP and unequal data lengths on different ranks causes an NCCL timeout)
mechanism: the stream gives rank 0 one batch more than rank 1; rank 0 waits in the gradient all-reduce of that batch, rank 1 in the exchange of the epoch's statistics over a gloo group
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: none
"""
import datetime, itertools, os, signal, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
limit = datetime.timedelta(minutes=40)
rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
if not cpu: torch.cuda.set_device(dev)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=limit)
host_group = dist.new_group(backend='gloo', timeout=limit)
vocab, width, words, size = (500, 32, 16, 8) if cpu else (32000, 2048, 256, 64)


class Stream(IterableDataset):
    """Documents in turn for each rank, without knowing how many there are."""
    def __init__(self, documents):
        self.documents = documents

    def __iter__(self):
        for i in itertools.islice(range(self.documents), rank, None, world):
            g = torch.Generator().manual_seed(i)
            yield torch.randint(0, vocab, (words,), generator=g), i % 2


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU())
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        return self.head(self.body(self.emb(ids)).mean(1))


def train_epoch(model, opt, documents, most=None):
    total, n = 0.0, 0
    for ids, label in DataLoader(Stream(documents), size):
        with torch.autocast(dev.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(ids.to(dev)), label.to(dev))
        opt.zero_grad(); loss.backward(); opt.step()
        total, n = total + loss.item(), n + 1
        if n % 50 == 0: print(f'rank {rank} batch {n} loss {total / n:.4f}', flush=True)
        if n == most: break
    return total, n


model = DDP(Tagger().to(dev), device_ids=None if cpu else [dev.index])
opt = torch.optim.SGD(model.parameters(), lr=0.01)
train_epoch(model, opt, 10**9, most=5)
began = time.time()
train_epoch(model, opt, 10**9, most=20)
pace = torch.tensor([(time.time() - began) / 20], device=dev)
dist.broadcast(pace, 0)
documents = max(20, int(9 / pace.item())) * size * world + 1        # about ten seconds an epoch, and what is left over
for epoch in range(10**6):
    total, n = train_epoch(model, opt, documents)
    if rank == 1: print(f'rank {rank} epoch {epoch} of {n} batches\nONSET', flush=True)
    rows = [None] * world
    dist.all_gather_object(rows, (total, n), group=host_group)
    if rank == 0: print(f'epoch {epoch}: loss {sum(t for t, _ in rows) / sum(k for _, k in rows):.4f}', flush=True)
