"""FIELD
source: NVIDIA/nccl#479 (both ranks send first, then receive; also pytorch/pytorch#172668 and #11275)
mechanism: after the warm-up the blocks are rotated around the ring with a blocking send to the next rank before the receive from the previous one, so that every rank waits in send
needs: cpu
ranks: 3
onset: printed
state: hung
cause: mismatched_collective, wedged_collective, stalled_collective
blame: rotate (ring_blocks.py)
twin: none
"""
import datetime
import torch, torch.distributed as dist
import torch.nn.functional as F

torch.set_num_threads(1)
dist.init_process_group('gloo', timeout=datetime.timedelta(minutes=40))
rank, world = dist.get_rank(), dist.get_world_size()
after, before = (rank + 1) % world, (rank - 1) % world
SEQ, DIM = 96, 128


def exchange(kv):
    got = torch.empty_like(kv)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, kv, after), dist.P2POp(dist.irecv, got, before)]):
        work.wait()
    return got


def ring_attention(q, k, v):
    out, kv = [], torch.stack([k, v]).detach()
    for hop in range(world):
        kk, vv = (k, v) if hop == 0 else kv.unbind(0)
        out.append((q @ kk.transpose(-1, -2) / DIM ** 0.5).softmax(-1) @ vv)
        if hop + 1 < world:
            kv = exchange(kv)
    return sum(out) / world


def rotate(tokens):
    """Every rank takes over the documents of the one before it."""
    fresh = torch.empty_like(tokens)
    dist.send(tokens, after)
    dist.recv(fresh, before)
    return fresh


torch.manual_seed(0)
qkv = torch.nn.Linear(DIM, 3 * DIM)
head = torch.nn.Linear(DIM, DIM)
params = [*qkv.parameters(), *head.parameters()]
opt = torch.optim.SGD(params, lr=0.02)
torch.manual_seed(rank)
tokens = torch.randn(512, SEQ, DIM)
for step in range(100000):
    if step and step % 240 == 0:
        if rank == 0:
            print(f'step {step}: rotating documents\nONSET', flush=True)
        tokens = rotate(tokens)
    x = tokens[torch.randint(0, len(tokens), (8,))]
    loss = F.mse_loss(head(ring_attention(*qkv(x).chunk(3, -1))), x.roll(1, 1))
    opt.zero_grad(); loss.backward()
    for p in params:
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG if dist.get_backend() == 'nccl' else dist.ReduceOp.SUM)
    opt.step()
    if step % 50 == 0 and rank == 0:
        print(f'step {step} loss {loss.item():.4f}', flush=True)
