"""FIELD
source: own (a parameter server by send and recv: rank 0 has little to do and waits for the gradients of any worker)
mechanism: rank 0 receives gradients from whichever worker comes next and sends the parameters back; it waits in recv nearly all the time, and nothing is wrong
needs: cpu
ranks: 3
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import datetime, time
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.set_num_threads(1)
RUN = 700                   # seconds


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(8, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU(),
                         nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(256, 8))


def serve(workers):
    model = make_model()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    n = sum(p.numel() for p in model.parameters())
    message, active, updates = torch.zeros(n + 1), set(workers), 0
    while active:
        sender = dist.recv(message)
        if message[-1] != 0:
            active.discard(sender)
            continue
        offset = 0
        for p in model.parameters():
            p.grad = message[offset:offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        opt.step()
        updates += 1
        dist.send(parameters_to_vector(model.parameters()).detach(), sender)
        if updates == 200:
            print('ONSET', flush=True)
        if updates % 200 == 0:
            print(f'{updates} updates', flush=True)


def work(rank):
    model = make_model()
    n = sum(p.numel() for p in model.parameters())
    torch.manual_seed(rank)
    begun, step = time.monotonic(), 0
    while time.monotonic() - begun < RUN:
        x = torch.randn(64, 8, 128)
        loss = nn.functional.cross_entropy(model(x), x.mean(2).argmax(1))
        model.zero_grad()
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.zeros(1)])
        dist.send(grads, 0)
        fresh = torch.empty(n)
        dist.recv(fresh, 0)
        vector_to_parameters(fresh, model.parameters())
        step += 1
        if step % 100 == 0:
            print(f'worker {rank} step {step} loss {loss.item():.4f}', flush=True)
    dist.send(torch.ones(n + 1), 0)


if __name__ == '__main__':
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(range(1, world))
    else:
        work(rank)
    dist.barrier()
    dist.destroy_process_group()
