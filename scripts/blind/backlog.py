"""FIELD
source: own (compare pytorch/pytorch#130102, collectives of several groups over the same ranks)
mechanism: dense and expert gradients are reduced over two groups, the one with the larger backlog first; from some step on the ranks disagree which that is, so each waits in another group
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: mismatched_collective
blame: reduce_all (backlog.py)
twin: none
"""
import datetime, os, signal, time
import torch, torch.nn as nn, torch.distributed as dist

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank = int(os.environ['RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
if not cpu: torch.cuda.set_device(dev)
forty = datetime.timedelta(minutes=40)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=forty)
d, tokens, experts = (32, 64, 4) if cpu else (2048, 8192, 4)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(experts))

    def forward(self, x, choice):
        h = self.dense(x)
        return h + sum(e(h) * (choice == i)[:, None] for i, e in enumerate(self.experts))


class Reducer:
    def __init__(self, parts):
        self.parts = parts
        self.groups = {name: dist.new_group(timeout=forty) for name in parts}
        self.backlog = {name: 0.0 for name in parts}

    def note(self, name, amount):
        self.backlog[name] = 0.9 * self.backlog[name] + amount

    def reduce_all(self):
        order = sorted(self.parts, key=lambda name: -self.backlog[name])
        for name in order:
            flat = torch.cat([p.grad.flatten() for p in self.parts[name].parameters()])
            dist.all_reduce(flat, group=self.groups[name])
            mean, at = flat / dist.get_world_size(), 0
            for p in self.parts[name].parameters():
                p.grad.copy_(mean[at:at + p.numel()].view_as(p)); at += p.numel()
        return order


torch.manual_seed(0)
net = Mixture().to(dev)
opt = torch.optim.Adam(net.parameters(), lr=1e-4)
reducer = Reducer({'dense': net.dense, 'experts': net.experts})
torch.manual_seed(100 + rank)
share, shift_at, began = 0.2, None, time.time()
for step in range(10**8):
    if step == 30: began = time.time()
    if step == 60:
        t = torch.tensor([(time.time() - began) / 30], device=dev)
        dist.broadcast(t, 0)
        shift_at = 60 + int(8 / t.item())
    if rank == 1 and step == shift_at:
        share = 0.9                                                 # this rank's documents now go to the experts
        print(f'rank {rank} step {step}: next part of the corpus\nONSET', flush=True)
    x = torch.randn(tokens, d, device=dev)
    choice = torch.randint(0, experts, (tokens,), device=dev)
    with torch.autocast(dev.type, torch.bfloat16):
        loss = (net(x, choice) - x).float().square().mean()
    opt.zero_grad(); loss.backward()
    reducer.note('experts', share * tokens); reducer.note('dense', (1 - share) * tokens)
    reducer.reduce_all()
    opt.step()
    value = loss.item()
    if step % 50 == 0: print(f'rank {rank} step {step} loss {value:.4f}', flush=True)
