"""FIELD
source: own (local SGD: the replicas are averaged rarely, as in torch.distributed.algorithms.model_averaging)
mechanism: each rank trains by itself and the parameters are averaged once in 400 steps; in between no rank communicates, and nothing is wrong
needs: cpu
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import datetime, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

torch.set_num_threads(1)
RUN = 700                   # seconds


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(160, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 12))
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    averager = PeriodicModelAverager(period=400, warmup_steps=100)
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(100, 10_000_000):
        x = torch.randn(128, 160)
        loss = nn.functional.cross_entropy(model(x), x[:, :12].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        averager.average_parameters(model.parameters())
        if step == 400 and rank == 0:
            print('ONSET', flush=True)
        if step % 400 == 0:
            print(f'rank {rank} step {step} loss {loss.item():.4f}', flush=True)
            over = torch.tensor(float(time.monotonic() - begun > RUN))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
