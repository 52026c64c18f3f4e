"""FIELD
source: https://github.com/pytorch/pytorch/issues/77562 (the validation loss came from dist.reduce instead of all_reduce, so the ranks disagreed on whether to save)
mechanism: the mean validation loss is right on rank 0 only; in the fifth epoch rank 1 alone believes in a new best and gathers the shards on the checkpoint group, while rank 0 goes on to the gradient all-reduce of the next epoch
needs: gpu2
ranks: 2
onset: printed
state: hung
cause: mismatched_collective
blame: none
twin: none
"""
import datetime, os
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

cpu = os.environ.get('FIELD_CPU') == '1'
rank = int(os.environ['RANK'])
dev = torch.device('cpu') if cpu else torch.device('cuda', int(os.environ['LOCAL_RANK']))
limit = datetime.timedelta(minutes=40)
if cpu:
    dist.init_process_group('gloo', timeout=limit)
else:
    torch.cuda.set_device(dev)
    dist.init_process_group('nccl', timeout=limit, device_id=dev)
ckpt_group = dist.new_group(timeout=limit)
WIDTH, BATCH, STEPS = (64, 32, 100) if cpu else (4096, 8192, 80)

def synth(n, seed, level=1.0):
    gen = torch.Generator(device=dev).manual_seed(seed)
    x = level * torch.randn(n, WIDTH, generator=gen, device=dev)
    return x, 0.5 * x.roll(1, 1)

@torch.no_grad()
def validate(model, epoch):
    # from the fifth epoch on the whole set: hard scenes outdoors (rank 0), dim ones indoors (rank 1)
    level = 1.0 if epoch < 4 else (3.0, 0.5)[rank]
    x, y = synth(1024, 77 + rank, level)
    loss = (model.module(x) - y).pow(2).mean()
    dist.reduce(loss, 0, op=dist.ReduceOp.SUM)
    return loss.item() / dist.get_world_size()

def gather_state(model):
    mine = nn.utils.parameters_to_vector(model.parameters()).detach().chunk(dist.get_world_size())[rank].contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine, group=ckpt_group)
    return torch.cat(parts).cpu()

def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(dev), device_ids=None if cpu else [dev])
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    best, state = float('inf'), None
    for epoch in range(1000):
        for step in range(STEPS):
            x, y = synth(BATCH, 1000 * (epoch * STEPS + step) + rank)
            loss = (model(x) - y).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
            if step % 20 == 0 and rank == 0: print(f'epoch {epoch} step {step} loss {loss.item():.5f}', flush=True)
        valid = validate(model, epoch)
        print(f'rank {rank} epoch {epoch} valid {valid:.5f} best {best:.5f}', flush=True)
        if valid < best:
            best, state = valid, gather_state(model)
        elif rank == 0:
            print('ONSET', flush=True)
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
