"""FIELD
source: own: one rank cleans the text for duplicates with a list instead of a set
mechanism: three ranks under DDP with equal work; after a while the shard of rank 1 comes from a crawl with many
    near-duplicates and each of its batches is compared with all the texts seen so far in pure Python (a quarter of a
    second and more), and the others wait for it in every all-reduce
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: slow
cause: straggling_rank
blame: rank 1
twin: none
"""
import os
import random
import signal
import socket
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

ALPHABET, LENGTH = 32, 40


def jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    return len(a & b) / len(a | b)


class Crawl:
    """Yields texts; the second part of the crawl must be filtered."""

    def __init__(self, rank: int, dirty_after: float) -> None:
        self.random, self.rank, self.dirty_after = random.Random(rank), rank, dirty_after
        self.seen: list[frozenset[int]] = [self.shingles(self.text()) for _ in range(2600)]
        self.announced = False

    def text(self) -> list[int]:
        return [self.random.randrange(1, ALPHABET) for _ in range(LENGTH)]

    @staticmethod
    def shingles(text: list[int]) -> frozenset[int]:
        return frozenset(a * ALPHABET + b for a, b in zip(text, text[1:], strict=False))

    def unseen(self, text: list[int]) -> bool:
        mine = self.shingles(text)
        if any(jaccard(mine, other) > 0.8 for other in self.seen):
            return False
        self.seen[self.random.randrange(len(self.seen))] = mine
        return True

    def __iter__(self) -> Iterator[list[int]]:
        began = time.monotonic()
        while True:
            text = self.text()
            if self.rank == 1 and time.monotonic() - began > self.dirty_after:
                if not self.announced:
                    self.announced = True
                    print("ONSET", flush=True)
                if not self.unseen(text):
                    continue
            yield text


def batches(texts: Iterator[list[int]], size: int) -> Iterator[Tensor]:
    while True:
        yield torch.tensor([next(texts) for _ in range(size)])


class CharModel(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(ALPHABET, width)
        self.conv = nn.Conv1d(width, 2 * width, 4, padding=3)
        self.out = nn.Linear(width, ALPHABET)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.conv(self.embed(tokens).transpose(1, 2))[..., : tokens.shape[1]]
        return self.out(nn.functional.glu(hidden, 1).transpose(1, 2))


def work(rank: int, world: int, port: int) -> None:
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = nn.parallel.DistributedDataParallel(CharModel())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    began = time.monotonic()
    for step, tokens in enumerate(batches(iter(Crawl(rank, dirty_after=15)), 16)):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        time.sleep(0.03)
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.3f} {step / (time.monotonic() - began):.1f} steps/s", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    os.environ["OMP_NUM_THREADS"] = "1"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(work, args=(3, port), nprocs=3, start_method="fork")
