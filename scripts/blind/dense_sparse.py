"""FIELD
source: NVIDIA/apex#19 and PR #18 (buckets in the order of a dict, which differs between the ranks); order over two groups as in meta-pytorch/torchrec#4149
mechanism: two groups reduce two kinds of gradients in the order in which the gradients became ready; an extra backward pass of rank 1 over its table turns its order around, so rank 0 is in the one group and rank 1 in the other
needs: cpu
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: none
"""
import datetime
import torch, torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
LIMIT = datetime.timedelta(minutes=40)
dist.init_process_group('gloo', timeout=LIMIT)
rank, world = dist.get_rank(), dist.get_world_size()
tower_group = dist.new_group(timeout=LIMIT)
table_group = dist.new_group(timeout=LIMIT)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5000, 64)
        self.tower = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, items):
        return self.tower(self.table(items).mean(1))


def reduce_tower(model):
    flat = torch.cat([p.grad.flatten() for p in model.tower.parameters()])
    dist.all_reduce(flat, group=tower_group)
    for p, part in zip(model.tower.parameters(), flat.split([p.numel() for p in model.tower.parameters()])):
        p.grad.copy_(part.view_as(p) / world)


def reduce_table(model):
    if model.table.weight.grad is None:
        model.table.weight.grad = torch.zeros_like(model.table.weight)
    dist.all_reduce(model.table.weight.grad, group=table_group)
    model.table.weight.grad.div_(world)


torch.manual_seed(0)
model = Recommender()
opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
ready = {}


def when_ready(reduce):
    def hook(_):
        ready.setdefault(reduce.__name__, reduce)
    return hook


model.tower[0].weight.register_post_accumulate_grad_hook(when_ready(reduce_tower))
model.table.weight.register_post_accumulate_grad_hook(when_ready(reduce_table))

torch.manual_seed(50 + rank)
for step in range(100000):
    ready.clear()
    items = torch.randint(0, 5000, (128, 12))
    if step >= 400 and step % 400 == 0 and rank == 1:       # a refresh of the catalogue: the table gets a regulariser of its own
        (1e-4 * model.table.weight.pow(2).sum()).backward()
        print(f'rank {rank} step {step}: catalogue refreshed\nONSET', flush=True)
    labels = (items.float().mean(1, keepdim=True) > 2500).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(items), labels)
    loss.backward()
    for reduce in ready.values():
        reduce(model)
    opt.step()
    opt.zero_grad()
    if step % 100 == 0 and rank == 0:
        print(f'step {step} loss {loss.item():.4f}', flush=True)
