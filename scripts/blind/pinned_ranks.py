"""FIELD
source: huggingface/accelerate#3911 and hpcaitech/FastFold#175 (the affinity of all processes is one and the same core)
mechanism: after the warm-up the ranks bind themselves to cores by a formula made for machines with many cores, which gives all four ranks of this machine core 0
needs: cpu
ranks: 4
onset: printed
state: slow
cause: oversubscribed_threads, contended_cpu
blame: none
twin: none
"""
import datetime, os, time
import torch, torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
CORES_PER_NODE = 64


def bind(local_rank, local_world):
    cores = sorted(os.sched_getaffinity(0))
    first = local_rank * len(cores) // CORES_PER_NODE
    width = max(1, len(cores) // CORES_PER_NODE)
    for thread in os.listdir('/proc/self/task'):
        os.sched_setaffinity(int(thread), cores[first:first + width])
    print(f'local rank {local_rank} of {local_world} on cores {cores[first:first + width]}', flush=True)


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
                              nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(384, 10)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(1000000):
        x = torch.randn(32, 3, 32, 32)
        loss = nn.functional.cross_entropy(model(x), x.mean((2, 3)).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 60:
            bind(int(os.environ['LOCAL_RANK']), int(os.environ['LOCAL_WORLD_SIZE']))
            dist.barrier()
            if rank == 0:
                print('ONSET', flush=True)
        if step % 20 == 0:
            if rank == 0:
                print(f'step {step} loss {loss.item():.4f} at {time.monotonic() - begun:.1f} s', flush=True)
            over = torch.tensor(float(time.monotonic() - begun > 700))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
