"""FIELD
source: own
mechanism: after some training both ranks evaluate a large test set, each its own half, without any exchange for about five minutes; then they sum their counts and train on
needs: gpu2
ranks: 2
onset: printed
state: busy
cause: evaluating
blame: none
twin: none
"""
import datetime, os, signal, time
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40), device_id=None if cpu else dev)
d, heads, seq, batch, depth, classes = (32, 2, 16, 8, 2, 10) if cpu else (1024, 16, 256, 64, 12, 1000)
test_seconds = 8 if cpu else 320


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.Linear(d, classes)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


def batches(n):
    for _ in range(n):
        yield torch.randn(batch, seq, d, device=dev), torch.randint(0, classes, (batch,), device=dev)


def train(model, opt, n, where):
    model.train()
    for i, (x, y) in enumerate(batches(n)):
        with torch.autocast(dev.type, torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        opt.zero_grad(); loss.backward(); opt.step()
        if i % 50 == 0: print(f'rank {rank} {where} step {i} loss {loss.item():.4f}', flush=True)


@torch.no_grad()
def test(net, n):
    net.eval()
    counts = torch.zeros(2, device=dev)
    for i, (x, y) in enumerate(batches(n)):
        with torch.autocast(dev.type, torch.bfloat16):
            hits = (net(x).argmax(-1) == y).sum()
        counts += torch.stack([hits, torch.tensor(batch, device=dev)])
        if i % 10 == 0: share = (counts[0] / counts[1]).item()
        if i % 500 == 0: print(f'rank {rank} test batch {i} of {n}: {share:.4f}', flush=True)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def seconds_per(f, n):
    began = time.time()
    f(n)
    t = torch.tensor([(time.time() - began) / n], device=dev)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


net = Encoder().to(dev)
model = DDP(net, device_ids=None if cpu else [local])
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
train(model, opt, 10, 'first')
test(net, 10)
each = seconds_per(lambda n: train(model, opt, n, 'trial'), 30)
each_test = seconds_per(lambda n: test(net, n), 50)
train(model, opt, int(8 / each), 'epoch 0')
if rank == 0: print('ONSET', flush=True)
print(f'rank {rank} accuracy {test(net, int(test_seconds / each_test)):.5f}', flush=True)
train(model, opt, 20 if cpu else 10**9, 'epoch 1')
