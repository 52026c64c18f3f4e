"""FIELD
source: own
mechanism: after some training the descriptors are evaluated: L1 distances of all queries to all of the gallery, each a single kernel of many seconds that ends, for five minutes
needs: gpu
ranks: 1
onset: printed
state: busy, healthy
cause: evaluating, gpu_bound, waiting_on_work
blame: none
twin: none
"""
import os, time
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
queries, gallery, dim, budget = (200, 200, 64, 5) if cpu else (32768, 32768, 16384, 330)


def train(net, opt, until):
    step = 0
    while time.time() < until:
        a = torch.randn(1024, 512, device=dev)
        near, far = net(a + 0.1 * torch.randn_like(a)), net(a.roll(1, 0))
        anchor = net(a)
        loss = F.triplet_margin_loss(anchor, near, far)
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 100 == 0: print(f'step {step} loss {loss.item():.4f}', flush=True)
        step += 1


@torch.inference_mode()
def evaluate(net, seconds):
    net.eval()
    embed = lambda n: torch.cat([net(torch.randn(256, 512, device=dev)) for _ in range(-(-n // 256))])[:n]
    q, hits, shards, end = embed(queries), 0, 0, time.time() + seconds
    while time.time() < end:
        g = embed(gallery)
        best = torch.cdist(q, g, p=1).argmin(1)
        hits += (best == torch.arange(queries, device=dev)).sum().item()
        shards += 1
        print(f'gallery shard {shards}: {hits} hits', flush=True)
        del g
    net.train()
    return hits / (shards * queries)


net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, dim)).to(dev)
opt = torch.optim.Adam(net.parameters(), lr=1e-4)
train(net, opt, time.time() + 10)
print('ONSET', flush=True)
print(f'recall {evaluate(net, budget):.5f}', flush=True)
train(net, opt, time.time() + (5 if cpu else 400))
