"""FIELD
source: pytorch/pytorch#52848 and #23074 (world_size larger than the number of processes that were started)
mechanism: the script assumes two nodes where only one was started, so init_process_group waits for ranks that nobody runs
needs: cpu
ranks: 2
onset: printed
state: hung
cause: blocked_rendezvous
blame: none
twin: none
"""
import datetime, os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)


def cluster():
    nodes = int(os.environ.get('CLUSTER_NODES', '2'))
    node = int(os.environ.get('CLUSTER_NODE', '0'))
    local, per_node = int(os.environ['LOCAL_RANK']), int(os.environ['LOCAL_WORLD_SIZE'])
    return node * per_node + local, nodes * per_node


def main():
    rank, world = cluster()
    print(f'rank {rank} of {world}: connecting', flush=True)
    if rank == 0:
        print('ONSET', flush=True)
    dist.init_process_group('gloo', rank=rank, world_size=world, timeout=datetime.timedelta(minutes=40))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)))
    opt = torch.optim.Adam(model.parameters())
    for step in range(20000):
        x = torch.randn(128, 128)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :16].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0 and rank == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
