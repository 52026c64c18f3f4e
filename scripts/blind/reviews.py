"""FIELD
source: lightseekorg/TorchSpec#13 and NVIDIA/Megatron-LM#2054 (ranks with longer sequences hold up the others)
mechanism: the reviews are sorted by length and split in contiguous halves, so rank 1 always has the long ones; rank 0 waits for it in each all-reduce
needs: cpu
ranks: 2
onset: printed
state: slow
cause: straggling_rank
blame: rank 1
twin: none
"""
import datetime, time
import torch, torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


class Classifier(nn.Module):
    def __init__(self, vocab=2000, dim=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 192, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)).mean(1))


def corpus(n):
    gen = torch.Generator().manual_seed(0)
    lengths = (torch.rand(n, generator=gen) ** 3 * 400 + 12).long()
    return sorted(lengths.tolist())


def main():
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    lengths = corpus(20000)
    share = len(lengths) // world
    mine = lengths[rank * share:(rank + 1) * share]
    torch.manual_seed(0)
    model = DDP(Classifier())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(rank)
    begun = time.monotonic()
    for step in range(1000000):
        pick = torch.randint(0, len(mine), (16,)).tolist()
        width = max(mine[k] for k in pick)
        ids = torch.randint(0, 2000, (16, width))
        loss = nn.functional.cross_entropy(model(ids), (ids[:, 0] > 1000).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(f'step {step} loss {loss.item():.4f}', flush=True)
        if step == 20 and rank == 1:
            print('ONSET', flush=True)
        over = torch.tensor(float(time.monotonic() - begun > 700))
        if step % 20 == 19:
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if over:
                break
    dist.destroy_process_group()


main()
