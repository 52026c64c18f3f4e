"""FIELD
source: own (after ami-data-companion#140: the training thread stays in queue.get while the producer is gone)
mechanism: the reader thread of rank 1 ends on a malformed record; the training thread goes on waiting in queue.get, and the other ranks wait in the gradient all-reduce
needs: cpu
ranks: 3
onset: printed
state: hung
cause: stalled_collective, deadlocked_locks, unknown
blame: next_batch (click_reader.py)
twin: none
"""
import datetime, itertools, os, queue, random, threading
import torch, torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
rank, world = dist.get_rank(), dist.get_world_size()


def records(shard):
    """Lines as the click log has them: label, then comma separated features."""
    rng = random.Random(shard)
    for n in itertools.count():
        feats = [rng.gauss(0, 1) for _ in range(32)]
        label = int(sum(feats[:5]) > 0)
        if shard == 1 and n == 64 * 330 + 11:
            yield f'{label};' + ','.join(f'{f:.4f}' for f in feats[:30])
        else:
            yield f'{label},' + ','.join(f'{f:.4f}' for f in feats)


class Reader(threading.Thread):
    def __init__(self, shard, batch):
        super().__init__(name='reader', daemon=True)
        self.lines, self.batch, self.ready = records(shard), batch, queue.Queue(maxsize=6)

    def run(self):
        try:
            while True:
                rows = [[float(v) for v in line.split(',')] for line in itertools.islice(self.lines, self.batch)]
                self.ready.put(torch.tensor(rows))
        except ValueError as exc:
            print(f'[rank {rank}] reader: {exc}\nONSET', flush=True)

    def next_batch(self):
        return self.ready.get()


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
reader = Reader(rank, 64)
reader.start()
for it in range(200000):
    rows = reader.next_batch()
    target, x = rows[:, :1], rows[:, 1:]
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.view(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p) / world)
        offset += p.numel()
    optimizer.step()
    if it % 50 == 0 and rank == 0:
        print(f'it {it} loss {loss.item():.4f}', flush=True)
