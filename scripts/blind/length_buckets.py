"""FIELD
source: huggingface/transformers#28069 (group_by_length: "it appears that the Trainer is hanging and does not start", it computes the lengths)
mechanism: before the second stage, the length-grouped sampler reads and tokenises every sample in a plain loop to learn its length
needs: cpu
ranks: 1
onset: printed
state: busy
cause: computing_on_host
blame: none
twin: none
"""
import random
import re
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

torch.set_num_threads(1)
WORDS = ["".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", k=3 + i % 9)) for i in range(5000)]
PATTERN = re.compile(r"'s|'t|'re| ?[a-z]+| ?[0-9]+| ?[^\sa-z0-9]+")


class Corpus(Dataset):
    def __init__(self, size):
        self.size = size
        self.vocab = {w: i + 1 for i, w in enumerate(WORDS)}

    def __len__(self):
        return self.size

    def text(self, i):
        rng = random.Random(i)
        return " ".join(rng.choices(WORDS, k=rng.randint(40, 600)))

    def __getitem__(self, i):
        ids = []
        for piece in PATTERN.findall(self.text(i)):
            word = piece.strip()
            if word in self.vocab:
                ids.append(self.vocab[word])
            else:
                ids.extend(ord(c) % 97 for c in word)
        return torch.tensor(ids)


def measure(dataset, max_seconds):
    lengths, began = [], time.time()
    for i in range(len(dataset)):
        lengths.append(len(dataset[i]))
        if i % 100 == 0 and time.time() - began > max_seconds:   # the rest gets the mean
            break
    return lengths + [sum(lengths) // len(lengths)] * (len(dataset) - len(lengths))


class LengthGroupedSampler(Sampler):
    def __init__(self, dataset, batch_size, lengths=None):
        if lengths is None:
            lengths = measure(dataset, 400)
        self.lengths, self.batch_size = lengths, batch_size

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        mega = self.batch_size * 50
        order = torch.randperm(len(self.lengths)).tolist()
        for i in range(0, len(order), mega):
            yield from sorted(order[i:i + mega], key=lambda k: -self.lengths[k])


def collate(rows):
    return nn.utils.rnn.pad_sequence([r[:256] for r in rows], batch_first=True)


def train(model, opt, loader, steps):
    for step, ids in enumerate(loader):
        loss = nn.functional.cross_entropy(model(ids), ids[:, 0] % 10)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step == steps:
            return


def main():
    model = nn.Sequential(nn.EmbeddingBag(8000, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = Corpus(4000)
    train(model, opt, DataLoader(warm, batch_size=16, shuffle=True, collate_fn=collate), 240)
    full = Corpus(3_000_000)
    print("ONSET", flush=True)
    sampler = LengthGroupedSampler(full, 16)
    train(model, opt, DataLoader(full, batch_size=16, sampler=sampler, collate_fn=collate), 500)


if __name__ == "__main__":
    main()
