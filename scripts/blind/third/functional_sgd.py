"""FIELD
source: own
mechanism: meta-learning with torch.func: no optimizer object at all, weights are a dictionary that is updated by hand, and one outer step takes a second
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: lunar_codex
"""
import signal

import torch
from torch.func import functional_call, grad, vmap

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
weights = {name: p.detach().clone() for name, p in net.named_parameters()}


def inner_loss(parameters, x, y):
    return (functional_call(net, parameters, (x,)) - y).square().mean()


def adapt(parameters, x, y, steps=3):
    for _ in range(steps):
        gradients = grad(inner_loss)(parameters, x, y)
        parameters = {name: parameters[name] - 0.02 * gradients[name] for name in parameters}
    return parameters


def outer_loss(parameters, tasks):
    support_x, support_y, query_x, query_y = tasks

    def one(sx, sy, qx, qy):
        return inner_loss(adapt(parameters, sx, sy), qx, qy)

    return vmap(one)(support_x, support_y, query_x, query_y).mean()


def sample_tasks(count, shots=20):
    amplitude, phase = torch.rand(count, 1, 1) * 4 + 0.5, torch.rand(count, 1, 1) * 3
    sx, qx = torch.rand(2, count, shots, 1) * 10 - 5
    return sx, amplitude * torch.sin(sx + phase), qx, amplitude * torch.sin(qx + phase)


for outer in range(10**6):
    tasks = sample_tasks(600)
    gradients = grad(outer_loss)(weights, tasks)
    weights = {name: weights[name] - 1e-3 * gradients[name] for name in weights}
    if outer == 5:
        print("ONSET", flush=True)
    if outer % 5 == 0:
        print("meta-step", outer, float(outer_loss(weights, sample_tasks(50))), flush=True)
