"""FIELD
source: own (gradient accumulation with no_sync over many micro-batches)
mechanism: an optimizer step is made of 160 micro-batches, so that it comes every several seconds; in between there is no communication and no output, and nothing is wrong
needs: cpu
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import contextlib, datetime, time
import torch, torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
ACCUMULATE, RUN = 160, 700


class Mixer(nn.Module):
    def __init__(self, tokens=32, dim=128):
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Linear(64, tokens))
        self.channel = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, dim))
        self.head = nn.Linear(dim, 5)

    def forward(self, x):
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channel(x)).mean(1))


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Mixer())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(rank)
    begun, micro, updates = time.monotonic(), 0, 0
    while True:
        x = torch.randn(48, 32, 128)
        last = micro % ACCUMULATE == ACCUMULATE - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), x[:, 0, :5].argmax(1)) / ACCUMULATE
            loss.backward()
        micro += 1
        if not last:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        updates += 1
        if updates == 2 and rank == 0:
            print('ONSET', flush=True)
        if updates % 10 == 0 and rank == 0:
            print(f'update {updates} loss {loss.item() * ACCUMULATE:.4f}', flush=True)
        over = torch.tensor(float(time.monotonic() - begun > RUN))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over:
            break
    dist.destroy_process_group()


main()
