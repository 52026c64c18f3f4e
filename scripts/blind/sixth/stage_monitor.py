"""FIELD
source: bo-ke/llm-internal-medicine#45, a pipeline stage without a monitored layer returns before the gather of metrics, rebuilt with 3 stages over gloo
mechanism: after the monitor's list is narrowed to the attention blocks, the last stage has none of them, returns early from gather_metrics() and waits for the next
    micro-batch from stage 1, while stages 0 and 1 wait for it in all_gather_object
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: stalled_collective,mismatched_collective
blame: rank 2
twin: none
"""
import os
import signal
import socket
from datetime import timedelta

import torch
import torch._dynamo  # the optimizers load it; once, before the ranks are forked
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

DIM, TOKENS, BATCH, VOCAB = 48, 24, 8, 97


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, x):
        return self.out(self.norm(x))


def stage(rank):
    if rank == 2:
        return Head()  # it got the big vocabulary, and no block
    blocks = [Block(), Block()]
    return nn.Sequential(*([nn.Embedding(VOCAB, DIM)] if rank == 0 else []), *blocks)


class Monitor:
    """Norms of the weights of the modules whose name matches."""

    def __init__(self, module):
        self.module, self.wanted = module, ("",)

    def local(self):
        return {
            name: p.detach().norm().item()
            for name, p in self.module.named_parameters() if any(w in name for w in self.wanted)
        }

    def gather_metrics(self):
        mine = self.local()
        if not mine:
            return {}  # nothing to contribute
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, mine)
        return {f"stage{i}.{k}": v for i, part in enumerate(parts) for k, v in part.items()}


def run(rank, world):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(rank)
    part = stage(rank)
    opt = torch.optim.AdamW(part.parameters(), lr=1e-3)
    monitor = Monitor(part)
    gen = torch.Generator().manual_seed(5)
    step = 0
    while True:
        tokens = torch.randint(0, VOCAB, (BATCH, TOKENS), generator=gen)  # all stages draw alike
        if rank == 0:
            received, out = None, part(tokens)
        else:
            received = torch.empty(BATCH, TOKENS, DIM)
            dist.recv(received, rank - 1)
            out = part(received.requires_grad_())
        opt.zero_grad()
        if rank < world - 1:
            dist.send(out.detach(), rank + 1)
            grad = torch.empty_like(out)
            dist.recv(grad, rank + 1)
            out.backward(grad)
        else:
            loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens.roll(-1, 1).flatten())
            loss.backward()
        if received is not None:
            dist.send(received.grad, rank - 1)
        opt.step()
        step += 1
        if step % 20 == 0:
            if step == 300:
                monitor.wanted = ("attention",)
                if rank == 0:
                    print("monitor: attention only from now on", flush=True)
                    print("ONSET", flush=True)
            metrics = monitor.gather_metrics()
            if rank == 2 and step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f}, {len(metrics)} norms", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]))
    mp.start_processes(run, (3,), nprocs=3, daemon=True, start_method="fork")
