"""FIELD
source: tdrussell/diffusion-pipe#409 (the first stage sends targets straight to the last stage with a blocking send)
mechanism: three pipeline stages over send and recv; when distillation begins, stage 0 sends the teacher's targets to
    stage 2 before the activations to stage 1; stage 2 receives the activations of stage 1 first, which waits for
    stage 0
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: mismatched_collective, stalled_collective, wedged_collective, unknown
blame: any
twin: none
"""
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

STAGES, WIDTH, BATCH, MICRO = 3, 160, 16, 4
DISTILL_FROM = 90


class Stage(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        block = [nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)]
        self.body = nn.Sequential(*block)
        self.head = nn.Linear(WIDTH, 10) if index == STAGES - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x) + x)


class Link:
    """Blocking point-to-point transfers to the neighbours."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def down(self, tensor: torch.Tensor, to: int) -> None:
        dist.send(tensor.detach().contiguous(), to)

    def up(self, shape: tuple[int, ...], source: int) -> torch.Tensor:
        buffer = torch.empty(shape)
        dist.recv(buffer, source)
        return buffer


def first(stage: Stage, link: Link, step: int, generator: torch.Generator) -> None:
    outputs = []
    for _ in range(MICRO):
        images = torch.randn(BATCH, WIDTH, generator=generator)
        targets = images[:, :10].softmax(-1) if step >= DISTILL_FROM else images[:, :10].argmax(-1).float()[:, None]
        if step >= DISTILL_FROM:
            link.down(targets, STAGES - 1)
            outputs.append(stage(images))
            link.down(outputs[-1], 1)
        else:
            outputs.append(stage(images))
            link.down(outputs[-1], 1)
            link.down(targets, STAGES - 1)
    for out in outputs:
        out.backward(link.up((BATCH, WIDTH), 1))


def middle(stage: Stage, link: Link) -> None:
    kept = []
    for _ in range(MICRO):
        x = link.up((BATCH, WIDTH), 0).requires_grad_()
        kept.append((x, stage(x)))
        link.down(kept[-1][1], 2)
    for x, y in kept:
        y.backward(link.up((BATCH, WIDTH), 2))
        link.down(x.grad, 0)


def last(stage: Stage, link: Link, step: int) -> float:
    total, inputs = 0.0, []
    for _ in range(MICRO):
        x = link.up((BATCH, WIDTH), 1).requires_grad_()
        targets = link.up((BATCH, 10 if step >= DISTILL_FROM else 1), 0)
        logits = stage(x)
        if step >= DISTILL_FROM:
            loss = nn.functional.kl_div(logits.log_softmax(-1), targets, reduction="batchmean")
        else:
            loss = nn.functional.cross_entropy(logits, targets[:, 0].long())
        (loss / MICRO).backward()
        inputs.append(x)
        total += loss.item() / MICRO
    for x in inputs:
        link.down(x.grad, 1)
    return total


def train(rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=STAGES, timeout=timedelta(hours=6))
    stage, link = Stage(rank), Link(rank)
    optimizer = torch.optim.AdamW(stage.parameters(), 3e-4)
    generator = torch.Generator().manual_seed(11)
    for step in range(20_000):
        optimizer.zero_grad()
        if rank == 0:
            if step == DISTILL_FROM:
                print("ONSET", flush=True)
            first(stage, link, step, generator)
        elif rank == 1:
            middle(stage, link)
        else:
            loss = last(stage, link, step)
            if step % 20 == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
        optimizer.step()
        time.sleep(0.12)


if __name__ == "__main__":
    signal.alarm(300)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20_000 + os.getpid() % 20_000))
    pids = []
    for r in range(STAGES):
        pid = os.fork()
        if pid == 0:
            signal.alarm(300)
            train(r)
            sys.exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
