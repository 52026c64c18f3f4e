"""FIELD
source: own: the final benchmark is run by rank 0 alone, one choice at a time and without a cache, while rank 1 waits
mechanism: after the last epoch rank 0 scores thousands of multiple-choice questions under no_grad with batch size 1
    and prints nothing until all are done; rank 1 waits for the scores in a broadcast
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: none
twin: none
"""
import dataclasses
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 400
    width: int = 128
    depth: int = 2
    context: int = 64
    seconds: float = 14
    questions: int = 12_000
    choices: int = 4


def build(cfg):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.proj = nn.Linear(cfg.width, 3 * cfg.width), nn.Linear(cfg.width, cfg.width)
            self.mlp = nn.Sequential(nn.Linear(cfg.width, 4 * cfg.width), nn.GELU(), nn.Linear(4 * cfg.width, cfg.width))
            self.n1, self.n2 = nn.RMSNorm(cfg.width), nn.RMSNorm(cfg.width)

        def forward(self, x):
            b, t, w = x.shape
            q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(a.transpose(1, 2).reshape(b, t, w))
            return x + self.mlp(self.n2(x))

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(cfg.vocab, cfg.width)
            nn.init.normal_(self.embed.weight, std=0.02)
            self.blocks = nn.Sequential(*(Block() for _ in range(cfg.depth)))

        def forward(self, tokens):
            return self.blocks(self.embed(tokens)) @ self.embed.weight.T

    torch.manual_seed(0)
    return Lm()


def score(lm, prompt, answer):
    """The log-likelihood of the answer, token by token, as a harness does it that cannot batch."""
    import torch

    total, context = 0.0, prompt
    for token in answer:
        logits = lm(context[None])[0, -1]
        total += torch.log_softmax(logits, -1)[token].item()
        context = torch.cat([context, token[None]])
    return total


def benchmark(lm, cfg):
    import torch

    right = 0
    with torch.inference_mode():
        for number in range(cfg.questions):
            generator = torch.Generator().manual_seed(number)
            draw = functools.partial(torch.randint, cfg.vocab, generator=generator)
            prompt = draw((cfg.context - 12,))
            answers = [draw((8,)) for _ in range(cfg.choices)]
            scores = [score(lm, prompt, a) for a in answers]
            right += scores.index(max(scores)) == number % cfg.choices
    return right / cfg.questions


def run(rank, cfg):
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    lm = build(cfg)
    ddp = nn.parallel.DistributedDataParallel(lm)
    opt = torch.optim.AdamW(ddp.parameters(), 1e-3, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=50)
    until, more, step = time.monotonic() + cfg.seconds, torch.ones(1), 0
    while more.item():
        tokens = torch.randint(cfg.vocab, (6, cfg.context + 1))
        loss = nn.functional.cross_entropy(ddp(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        opt.step()
        warm.step()
        more.fill_(float(time.monotonic() < until))
        dist.all_reduce(more, dist.ReduceOp.MIN)
        step += 1
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    accuracy = torch.zeros(1)
    if rank == 0:
        print("running the benchmark", flush=True)
        print("ONSET", flush=True)
        accuracy.fill_(benchmark(lm.eval(), cfg))
    dist.broadcast(accuracy, 0)
    print(f"rank {rank}: accuracy {accuracy.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    signal.alarm(300)
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), Config())
    else:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1]), "WORLD_SIZE": "2"}
        ranks = [subprocess.Popen([sys.executable, __file__], env=env | {"RANK": str(r)}) for r in (0, 1)]
        sys.exit(max(abs(p.wait()) for p in ranks))
