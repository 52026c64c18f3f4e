"""FIELD
source: own
mechanism: ranks 0 and 1 train in a group of their own without a break; rank 2 only scores the weights that rank 0 sends every 40 s, and waits in a receive the rest of the time, as intended
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
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PERIOD, TOTAL = 40, 720

def build():
    torch.manual_seed(11)
    return nn.Sequential(nn.Conv1d(8, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 8, 5, padding=2))

def signal_batch(n):
    t = torch.linspace(0, 1, 128)
    wave = torch.sin(t * 40 * torch.rand(n, 8, 1) + 6 * torch.rand(n, 8, 1))
    return wave + 0.3 * torch.randn_like(wave), wave

def train(rank, group):
    model = DDP(build(), process_group=group)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    begun = sent = time.time()
    control = torch.zeros(2)                      # send the weights, stop
    torch.manual_seed(rank)
    for step in range(10**9):
        noisy, clean = signal_batch(48)
        loss = (model(noisy) - clean).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if step == 40 and rank == 0: print('ONSET', flush=True)
        if step % 10:
            continue
        if rank == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
            control[0], control[1] = time.time() - sent > PERIOD, time.time() - begun > TOTAL
        dist.broadcast(control, 0, group=group)
        if rank == 0 and control.any():
            sent = time.time()
            dist.send(torch.cat([control[1:], parameters_to_vector(model.parameters()).detach()]), 2)
        if control[1]:
            return

def judge():
    model, best = build(), float('inf')
    noisy, clean = signal_batch(512)
    buffer = torch.empty(1 + sum(p.numel() for p in model.parameters()))
    while True:
        dist.recv(buffer, 0)
        if buffer[0]:
            return
        vector_to_parameters(buffer[1:], model.parameters())
        with torch.no_grad():
            score = (model(noisy) - clean).pow(2).mean().item()
        best = min(best, score)
        print(f'referee: {score:.4f}, best {best:.4f}', flush=True)

if __name__ == '__main__':
    torch.set_num_threads(1)
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    group = dist.new_group([0, 1], timeout=datetime.timedelta(minutes=40))
    if dist.get_rank() == 2:
        judge()
    else:
        train(dist.get_rank(), group)
    dist.destroy_process_group()
