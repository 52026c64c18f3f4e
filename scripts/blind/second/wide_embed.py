"""FIELD
source: https://github.com/NVIDIA/nccl/issues/631 (NCCL_P2P_DISABLE=1 as a workaround for a freeze; "just reduced performance")
mechanism: the script still carries the settings of another machine that forbid NCCL peer-to-peer copies and shared memory, so a gigabyte of gradients crosses a socket in each step and the cards wait for it
needs: gpu2
ranks: 2
onset: printed
state: slow
cause: exposed_communication
blame: none
twin: none
"""
import datetime, os, time

# the old nodes freeze without these
os.environ.setdefault('NCCL_P2P_DISABLE', '1')
os.environ.setdefault('NCCL_SHM_DISABLE', '1')
os.environ.setdefault('NCCL_IB_DISABLE', '1')
os.environ.setdefault('NCCL_NVLS_ENABLE', '0')
os.environ.setdefault('NCCL_SOCKET_IFNAME', 'lo')

import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

cpu = os.environ.get('FIELD_CPU') == '1'
WIDTH, BATCH, DEPTH = (512, 16, 4) if cpu else (8192, 256, 4)

def main():
    torch.set_num_threads(1)
    rank = int(os.environ['RANK'])
    dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
    if not cpu:
        torch.cuda.set_device(dev)
        torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())])
    model = DDP(net.to(dev), gradient_as_bucket_view=True)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)
    begun, over = time.time(), torch.zeros(1, device=dev)
    for step in range(10**9):
        x = torch.randn(BATCH, WIDTH, device=dev)
        loss = (model(x) - x.abs()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if rank == 0 and step == 15: print('ONSET', flush=True)
        if step % 20 == 0:
            if rank == 0: print(f'{time.time() - begun:.1f} s step {step} loss {loss.item():.4f}', flush=True)
            over.fill_(float(time.time() - begun > 700))
            dist.broadcast(over, 0)
            if over.item(): break
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
