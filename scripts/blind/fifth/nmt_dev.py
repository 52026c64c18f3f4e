"""FIELD
source: LibreYOLO/libreyolo#594 (rank-zero validation while the peers wait), own: done rightly, with the bare module and a long timeout
mechanism: after epoch 2 rank 0 alone translates the whole development set by greedy decoding (about 220 s), the other rank waits in a barrier on its own group
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: busy
cause: evaluating,waiting_on_work
blame: none
twin: none
"""
import datetime
import functools
import math
import signal
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, BOS, LEN, DEV = 120, 1, 16, 22000


def rank_zero_phase(name):
    """Runs a function on rank 0 only; everybody leaves it together."""

    def deco(fn):
        @functools.wraps(fn)
        def inner(self, *args):
            result = [None]
            if self.rank == 0:
                t = time.monotonic()
                result = [fn(self, *args)]
                print(f"{name}: {result[0]:.3f} in {time.monotonic() - t:.0f} s", flush=True)
            dist.barrier(group=self.slow_group)
            dist.broadcast_object_list(result, 0, group=self.slow_group)
            return result[0]

        return inner

    return deco


class Seq2Seq(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.src, self.tgt = nn.Embedding(VOCAB, dim), nn.Embedding(VOCAB, dim)
        self.core = nn.Transformer(dim, 4, 2, 2, 128, dropout=0.1, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, s, t):
        mask = nn.Transformer.generate_square_subsequent_mask(t.shape[1])
        return self.out(self.core(self.src(s), self.tgt(t), tgt_mask=mask, tgt_is_causal=True))


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        self.slow_group = dist.new_group(timeout=datetime.timedelta(hours=2))
        torch.manual_seed(1)
        self.model = DDP(Seq2Seq())
        self.opt = torch.optim.Adam(self.model.parameters(), 1e-3, betas=(0.9, 0.98))
        self.gen = torch.Generator().manual_seed(rank)
        self.best = math.inf

    def pairs(self, n):
        src = torch.randint(2, VOCAB, (n, LEN), generator=self.gen)
        return src, torch.cat([torch.full((n, 1), BOS), src.flip(1)], 1)

    def epoch(self, number, steps=70):
        self.model.train()
        for i in range(steps):
            src, tgt = self.pairs(8)
            time.sleep(0.02)
            loss = nn.functional.cross_entropy(self.model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.rank == 0 and i % 20 == 0:
                print(f"epoch {number} {i}/{steps} loss {loss.item():.3f}", flush=True)

    @rank_zero_phase("dev token error")
    def translate_dev(self):
        net, wrong = self.model.module.eval(), 0
        print("ONSET", flush=True)
        with torch.inference_mode():
            for done in range(0, DEV, 4):
                src, tgt = self.pairs(4)
                hyp = tgt[:, :1]
                while hyp.shape[1] <= LEN:
                    hyp = torch.cat([hyp, net(src, hyp)[:, -1:].argmax(-1)], 1)
                wrong += (hyp[:, 1:] != tgt[:, 1:]).float().mean().item() * 4
                if done % 400 == 0:
                    print(f"translated {done}/{DEV}", flush=True)
        return wrong / DEV


def entry(rank, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    t = Trainer(rank)
    for number in range(100):
        t.epoch(number)
        if number % 3 == 2:
            t.best = min(t.best, t.translate_dev())


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        free = s.getsockname()[1]
    mp.spawn(entry, (free,), nprocs=2, daemon=True)
