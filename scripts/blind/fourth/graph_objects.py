"""FIELD
source: pytorch/torchtitan#148 (the garbage collector takes the time), with a graph as Python objects
mechanism: a large graph is kept as dicts and lists, the thresholds of the garbage collector were lowered to (200, 2, 2) "to save memory", and each neighbour sampling triggers full collections
needs: none
ranks: 1
onset: printed
state: slow
cause: garbage_collection
blame: none
twin: none
"""

import gc
import random
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
rng = random.Random(3)
N = 150_000
graph = {i: {"neighbours": [rng.randrange(N) for _ in range(6)], "attrs": {"kind": [rng.random()]}} for i in range(N)}
features = torch.randn(N, 64)


class Sample:
    def __init__(self, node, children):
        self.node, self.children = node, children


def sample(node, fanout, depth):
    if depth == 0:
        return Sample(node, [])
    chosen = rng.sample(graph[node]["neighbours"], fanout)
    return Sample(node, [sample(child, fanout, depth - 1) for child in chosen])


def flatten(tree, out):
    out.append(tree.node)
    for child in tree.children:
        flatten(child, out)
    return out


sage = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
opt = torch.optim.Adam(sage.parameters())
for step in range(10**6):
    trees = [sample(rng.randrange(N), 3, 3) for _ in range(32)]
    nodes = [flatten(tree, []) for tree in trees]
    pooled = torch.stack([features[torch.tensor(one)].mean(0) for one in nodes])
    loss = torch.nn.functional.cross_entropy(sage(pooled), torch.randint(0, 8, (32,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 300:
        gc.set_threshold(200, 2, 2)
        gc.collect()
        print("ONSET", flush=True)
    if step % (100 if step < 300 else 5) == 0:
        print("batch", step, loss.item(), flush=True)
