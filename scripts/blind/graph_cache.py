"""FIELD
source: pytorch/torchtitan#148 and #696 (the garbage collector of one rank holds up all others)
mechanism: rank 0 keeps the whole interaction graph as Python objects and runs gc.collect after each step, which takes far longer than the step; rank 1 waits for it in the all-reduce
needs: cpu
ranks: 2
onset: printed
state: slow
cause: straggling_rank, garbage_collection
blame: rank 0
twin: none
"""
import datetime, gc, random, time
import torch, torch.distributed as dist
from torch import nn

torch.set_num_threads(1)


class Node:
    __slots__ = ('key', 'links', 'weight')

    def __init__(self, key):
        self.key, self.links, self.weight = key, [], {'w': 1.0}


class Graph:
    def __init__(self, n):
        rng = random.Random(0)
        self.nodes = [Node(k) for k in range(n)]
        for node in self.nodes:
            node.links = [self.nodes[rng.randrange(n)] for _ in range(3)]

    def walk(self, start, length):
        node = self.nodes[start % len(self.nodes)]
        for k in range(length):
            node = node.links[k % 3]
        return node.key


def free_memory():
    gc.collect()


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 64))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    graph = None
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(1000000):
        x = torch.randn(128, 64)
        if graph is not None:
            x[0, 0] = graph.walk(step, 20) / 1e6
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
        if step % 5 == 0 and rank == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
        if step == 250 and rank == 0:
            graph = Graph(300_000)
            print('graph loaded\nONSET', flush=True)
        if graph is not None:
            free_memory()
        if step % 20 == 19:
            over = torch.tensor(float(time.monotonic() - begun > 700))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
