"""FIELD
source: pytorch/pytorch#172668 (pipeline stages each wait for a transfer that the other did not post); own: drop_last left at False
mechanism: the last batch of the epoch is short, so that stage 0 splits it into 3 microbatches, while stage 1 expects the 4 of its config: stage 1 waits for an activation, stage 0 for the gradient
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: mismatched_collective,stalled_collective,wedged_collective
blame: none
twin: none
"""
import dataclasses
import signal
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


@dataclasses.dataclass
class PipeConfig:
    vocab: int = 200
    dim: int = 64
    seq: int = 24
    micro: int = 8
    n_micro: int = 4
    samples: int = 32 * 170 + 24
    lr: float = 1e-3


class FirstStage(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c.vocab, c.dim)
        self.block = nn.TransformerEncoderLayer(c.dim, 4, 128, batch_first=True, dropout=0)

    def forward(self, ids):
        return self.block(self.emb(ids))


class LastStage(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(c.dim, 4, 128, batch_first=True, dropout=0)
        self.head = nn.Linear(c.dim, c.vocab)

    def forward(self, h, target):
        return nn.functional.cross_entropy(self.head(self.block(h)).flatten(0, 1), target.flatten())


class Pipeline:
    """GPipe: all forwards, then all backwards."""

    def __init__(self, cfg, rank):
        self.cfg, self.rank = cfg, rank
        self.stage = (FirstStage, LastStage)[rank](cfg)
        self.opt = torch.optim.AdamW(self.stage.parameters(), cfg.lr)
        g = torch.Generator().manual_seed(5)
        self.corpus = torch.randint(cfg.vocab, (cfg.samples, cfg.seq + 1), generator=g)

    def batches(self):
        for chunk in self.corpus.split(self.cfg.micro * self.cfg.n_micro):
            time.sleep(0.02)  # tokenised shards come from disk
            yield chunk

    def step_first(self, batch):
        if len(batch) < self.cfg.micro * self.cfg.n_micro:
            print("ONSET", flush=True)
        acts = []
        for mb in batch.split(self.cfg.micro):
            h = self.stage(mb[:, :-1])
            dist.send(h.detach(), dst=1)
            acts.append(h)
        for h in acts:
            grad = torch.empty_like(h)
            dist.recv(grad, src=1)
            h.backward(grad)

    def step_last(self, batch):
        shape = (self.cfg.micro, self.cfg.seq, self.cfg.dim)
        inputs, losses = [], []
        targets = batch[:, 1:].split(self.cfg.micro)
        for m in range(self.cfg.n_micro):
            h = torch.empty(shape)
            dist.recv(h, src=0)
            inputs.append(h.requires_grad_())
            losses.append(self.stage(h, targets[m]) / self.cfg.n_micro)
        for h, loss in zip(inputs, losses, strict=True):
            loss.backward()
            dist.send(h.grad, dst=0)
        return sum(losses).item()

    def train(self):
        for epoch in range(50):
            for i, batch in enumerate(self.batches()):
                self.opt.zero_grad()
                loss = self.step_last(batch) if self.rank else self.step_first(batch)
                self.opt.step()
                if self.rank and i % 20 == 0:
                    print(f"epoch {epoch} step {i} loss {loss:.3f}", flush=True)


def run(rank, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    Pipeline(PipeConfig(), rank).train()


if __name__ == "__main__":
    signal.alarm(300)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        addr = sock.getsockname()[1]
    mp.spawn(run, (addr,), nprocs=2, daemon=True)
