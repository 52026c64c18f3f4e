"""FIELD
source: https://github.com/microsoft/onnxruntime/pull/10163 and https://github.com/lightseekorg/TorchSpec/issues/13 (samples of unequal length make one rank the straggler)
mechanism: the samples are sorted by length and each rank takes one contiguous half, so rank 1 has all the long ones and needs several times as long in every step, while rank 0 waits in the all-reduce
needs: gpu2
ranks: 2
onset: printed
state: slow
cause: straggling_rank
blame: rank 1
twin: none
"""
import datetime, os, time
import torch, torch.nn as nn, torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

cpu = os.environ.get('FIELD_CPU') == '1'
WIDTH, HEADS, DEPTH, BATCH, LONGEST, UNIT = (32, 2, 2, 4, 96, 8) if cpu else (1024, 16, 12, 16, 4096, 128)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(x)

def lengths():
    gen = torch.Generator().manual_seed(4)
    drawn = (torch.randn(20_000, generator=gen) * 1.1 + 6.3).exp() if not cpu else torch.rand(2000, generator=gen) * LONGEST
    return (drawn.clamp(UNIT, LONGEST) / UNIT).long().clamp(min=1).mul(UNIT).sort().values

def main():
    torch.set_num_threads(1)
    rank = int(os.environ['RANK'])
    dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
    if not cpu: torch.cuda.set_device(dev)
    dist.init_process_group('gloo' if cpu else 'nccl', timeout=datetime.timedelta(minutes=40))
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[Layer() for _ in range(DEPTH)]).to(dev))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
    every = lengths()
    mine = every[rank * len(every) // world:(rank + 1) * len(every) // world]
    order = torch.randperm(len(mine), generator=torch.Generator().manual_seed(rank))
    begun, mark, over = time.time(), torch.zeros(1, device=dev), False
    warm = True
    for step in range(10**9):
        length = 4 * UNIT if warm else int(mine[order[step % len(order)]])
        x = torch.randn(BATCH, length, WIDTH, device=dev)
        with torch.autocast(dev.type, torch.bfloat16):
            loss = (model(x).float() - x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 20 == 0:
            mark.fill_(time.time() - begun)
            dist.broadcast(mark, 0)
            elapsed = mark.item()
            if rank == 0: print(f'{elapsed:.0f} s step {step} length {length} loss {loss.item():.4f}', flush=True)
            if warm and elapsed > 9:
                warm = False                      # the warm-up has short texts only
                if rank == 0: print('ONSET', flush=True)
            if elapsed > 700: break
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
