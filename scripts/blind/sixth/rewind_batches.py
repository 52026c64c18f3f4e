"""FIELD
source: huggingface/transformers#11284, lhotse-speech/lhotse#1080 (resuming skips the batches that were seen, silently and for hours)
mechanism: stage 2 continues an older run: the loop takes thousands of batches from the loader and drops them, the worker
    tokenises all of them; nothing is printed and no step is made, but it moves on and ends
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""

import hashlib
import itertools
import random
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


class Verses(Dataset):
    def __init__(self, length=24):
        self.length = length

    def __len__(self):
        return 500_000

    def __getitem__(self, index):
        rng = random.Random(index)
        text = " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(self.length * 6))
        ids = []
        for word in text.split():
            while word:
                for size in (4, 3, 2, 1):
                    if int.from_bytes(hashlib.md5(word[:size].encode()).digest()[:1], "big") < 64 * (5 - size):
                        break
                ids.append(hash_id(word[:size]))
                word = word[size:]
        return torch.tensor(ids[: self.length + 1])


def hash_id(piece):
    return int.from_bytes(hashlib.md5(piece.encode()).digest()[:4], "big") % 1000


class Memory:
    """Stage 1 reads batches that were tokenised long ago."""

    def __iter__(self):
        while True:
            yield torch.randint(1000, (24, 25))


class Trainer:
    def __init__(self):
        self.model = nn.ModuleDict({
            "embed": nn.Embedding(1000, 96), "rnn": nn.GRU(96, 128, batch_first=True), "out": nn.Linear(128, 1000)
        })
        self.opt = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.state = {"stage": 1, "batch": 0}

    def step(self, ids):
        hidden, _ = self.model["rnn"](self.model["embed"](ids[:, :-1]))
        loss = nn.functional.cross_entropy(self.model["out"](hidden).flatten(0, 1), ids[:, 1:].flatten())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.state["batch"] += 1
        if self.state["batch"] % 50 == 0:
            print(self.state, f"{loss.item():.3f}", flush=True)

    def run(self, batches, seconds):
        end = time.monotonic() + seconds
        for ids in itertools.takewhile(lambda _: time.monotonic() < end, batches):
            self.step(ids)

    def resume(self, batches, seen):
        iterator = iter(batches)
        for _ in range(seen):
            next(iterator)
        self.state.update(stage=2, batch=seen)
        return iterator


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    trainer = Trainer()
    trainer.run(Memory(), 17)
    verses = DataLoader(Verses(), 32, shuffle=True, num_workers=1, generator=torch.Generator().manual_seed(1),
                        multiprocessing_context="fork", worker_init_fn=lambda _: signal.alarm(300))
    print("stage 2 resumes at its batch 6000")
    print("ONSET", flush=True)
    trainer.run(trainer.resume(verses, 6000), 3600)


if __name__ == "__main__":
    main()
