"""FIELD
source: deepspeedai/DeepSpeed#1635 and #6834 (CPU Adam of an offloaded optimizer takes most of the step)
mechanism: the optimizer is sharded by rank and rank 1's shard is offloaded: gradients to the host, AdamW there on one core, parameters back; rank 0 waits in the broadcast of rank 1's parameters
needs: gpu2
ranks: 2
onset: printed
state: slow
cause: straggling_rank
blame: rank 1
twin: none
"""
import datetime, os, signal, time
import torch, torch.nn as nn, torch.distributed as dist

torch.set_num_threads(1)
signal.alarm(880)
cpu = os.environ.get('FIELD_CPU') == '1'
rank, local = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', local)
if not cpu: torch.cuda.set_device(local)
dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
d, layers, rows = (64, 4, 32) if cpu else (4096, 6, 8192)
offload = {0: False, 1: True}


class ShardedAdamW:
    def __init__(self, params, lr):
        self.params = list(params)
        self.owner = [i * dist.get_world_size() // len(self.params) for i in range(len(self.params))]
        self.mine = [p for p, o in zip(self.params, self.owner) if o == rank]
        self.masters = [nn.Parameter(p.detach().to('cpu' if offload[rank] else dev, torch.float32, copy=True)) for p in self.mine]
        self.inner = torch.optim.AdamW(self.masters, lr=lr)

    @torch.no_grad()
    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        for master, p in zip(self.masters, self.mine): master.grad = p.grad.to(master.device, torch.float32)
        self.inner.step()
        for master, p in zip(self.masters, self.mine): p.copy_(master)
        for p, owner in zip(self.params, self.owner): dist.broadcast(p, owner)

    def zero_grad(self):
        for p in self.params: p.grad = None


torch.manual_seed(0)
model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(d, d, bias=False), nn.GELU())]).to(dev, torch.bfloat16)
opt = ShardedAdamW(model.parameters(), 1e-4)
torch.manual_seed(1 + rank)
start, told = time.time(), False
for step in range(10**9):
    x = torch.randn(rows, d, device=dev, dtype=torch.bfloat16)
    loss = (model(x) - x).float().square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0: print(f'rank {rank} step {step} loss {loss.item():.4f}', flush=True)
    if rank == 1 and not told and time.time() - start > 10: told = True; print('ONSET', flush=True)
