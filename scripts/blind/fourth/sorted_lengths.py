"""FIELD
source: own, after reports that a sampler that sorts by length gives the long documents to one rank
mechanism: after the first epoch the data is sorted by length and cut into one contiguous part a rank; rank 2 has the long sequences, and the others wait for it in each exchange
needs: none
ranks: 3
onset: printed
state: slow
cause: straggling_rank
blame: rank 2
twin: none
"""

import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
embed = torch.nn.Embedding(1000, 48)
rnn = torch.nn.GRU(48, 48, batch_first=True)
out = torch.nn.Linear(48, 1000)
params = [*embed.parameters(), *rnn.parameters(), *out.parameters()]
opt = torch.optim.SGD(params, lr=0.05)
lengths = torch.cat([torch.randint(8, 24, (400,)), torch.randint(180, 260, (200,))])


def shard(epoch):
    if epoch == 0:
        order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(5))
        return lengths[order][rank::world]
    return lengths.sort().values.chunk(world)[rank]


for epoch in range(10**6):
    if epoch == 1 and rank == 0:
        print("ONSET", flush=True)
    for step, chunk in enumerate(shard(epoch).split(4)):
        ids = torch.randint(0, 1000, (4, int(chunk.max())))
        loss = torch.nn.functional.cross_entropy(out(rnn(embed(ids))[0]).flatten(0, 1), ids.roll(-1, 1).flatten())
        opt.zero_grad()
        loss.backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if step % 20 == 0 and rank == 0:
            print("epoch", epoch, "step", step, loss.item(), flush=True)
