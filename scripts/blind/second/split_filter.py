"""FIELD
source: https://github.com/huggingface/datasets/issues/6719 (filtering after the split by rank leaves unequal numbers of batches; the job hangs)
mechanism: the filter leaves rank 1 fewer batches; it ends its epoch early and polls for the file of hard examples that rank 0 writes after the epoch, while the others wait for rank 1 in the gradient all-reduce
needs: cpu
ranks: 3
onset: printed
state: hung
cause: stalled_collective, waiting_for_file
blame: rank 1
twin: none
"""
import datetime, json, os, tempfile, time
import torch, torch.nn as nn, torch.distributed as dist

def shard(epoch, rank, world, batch):
    gen = torch.Generator().manual_seed(epoch)
    quality = torch.rand(9000 * world, generator=gen)
    quality[1::world] *= 0.97 if epoch < 2 else 0.80     # the second source gets worse
    keep = [i for i in range(rank, len(quality), world) if quality[i] > 0.05]
    if epoch < 2:
        keep = keep[:8400]
    return torch.tensor(keep[:len(keep) // batch * batch]).view(-1, batch)

def reduce_grads(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world

def wait_for_hard_examples(path):
    while not os.path.exists(path):
        time.sleep(0.25)
    with open(path) as src:
        return json.load(src)

def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    where = [tempfile.mkdtemp(prefix='hard_')] if rank == 0 else [None]
    dist.broadcast_object_list(where, 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(4096, 32), nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(1000):
        losses = {}
        batches = shard(epoch, rank, world, 40)
        for n, ids in enumerate(batches):
            loss = nn.functional.cross_entropy(model(ids.unsqueeze(1) % 4096), ids % 8, reduction='none')
            opt.zero_grad(); loss.mean().backward()
            reduce_grads(model, world)
            opt.step()
            losses.update(zip(ids.tolist(), loss.tolist()))
            if rank == 0 and n % 50 == 0: print(f'epoch {epoch} batch {n}/{len(batches)} loss {loss.mean().item():.4f}', flush=True)
        if epoch == 2 and rank == 1: print('ONSET', flush=True)
        path = os.path.join(where[0], f'epoch{epoch}.json')
        if rank == 0:
            with open(path + '.tmp', 'w') as out:
                json.dump(sorted(losses, key=losses.get)[-200:], out)
            os.replace(path + '.tmp', path)
        hard = wait_for_hard_examples(path)
        if rank == 0: print(f'epoch {epoch} done, {len(hard)} hard examples', flush=True)

if __name__ == '__main__':
    main()
