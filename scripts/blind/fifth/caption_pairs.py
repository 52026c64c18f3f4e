"""FIELD
source: fastai/fastai#2812 (training a language model is very slow: the slowness lies in the construction of the batch)
mechanism: num_workers=0 and a byte-pair encoder in pure Python in the dataset take most of each step (about 70 %); a save with fsync every 10 steps takes a smaller part (about a tenth)
needs: none
ranks: 1
onset: printed
state: slow
cause: serial_loading
blame: encode ()
twin: none
"""
import argparse
import os
import random
import signal
import tempfile
import time
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LETTERS = "etaoinshrdlucmfwygp"


def invent_merges(count, rng):
    merges, pieces = {}, list(LETTERS)
    while len(merges) < count:
        left, right = rng.choice(pieces), rng.choice(pieces)
        if len(left + right) < 9 and (left, right) not in merges:
            merges[left, right] = len(merges)
            pieces.append(left + right)
    return merges, {piece: i + 1 for i, piece in enumerate(dict.fromkeys(pieces))}


class CaptionPairs(Dataset):
    def __init__(self, size, length, rng):
        self.merges, self.vocab = invent_merges(700, rng)
        self.length = length
        self.texts = [" ".join("".join(rng.choices(LETTERS, k=rng.randint(4, 11))) for _ in range(14)) for _ in range(size)]

    def __len__(self):
        return len(self.texts)

    def encode(self, text):
        ids = []
        for word in text.split():
            parts = list(word)
            while len(parts) > 1:
                ranks = [self.merges.get(pair, 10**9) for pair in pairwise(parts)]
                best = min(range(len(ranks)), key=ranks.__getitem__)
                if ranks[best] == 10**9:
                    break
                parts[best : best + 2] = [parts[best] + parts[best + 1]]
            ids.extend(self.vocab.get(part, 0) for part in parts)
        return ids[: self.length] + [0] * (self.length - len(ids))

    def __getitem__(self, index):
        return torch.tensor(self.encode(self.texts[index])), torch.tensor(self.encode(self.texts[index - 1]))


class Tower(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))

    def forward(self, ids):
        return nn.functional.normalize(self.mix(self.embed(ids).mean(1)), dim=-1)


def save(path, net, optimizer, step):
    with open(path + ".part", "wb") as out:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(path + ".part", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--save-every", type=int, default=10)
    args = parser.parse_args()
    signal.alarm(300)
    torch.set_num_threads(1)
    data = CaptionPairs(4000, 64, random.Random(3))
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True, num_workers=0)
    net = Tower(32_000)  # the table of the published checkpoint; this encoder uses a part of it
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    path = os.path.join(tempfile.mkdtemp(prefix="pairs_"), "last.pt")
    begun, told, step = time.monotonic(), False, 0
    while True:
        for left, right in loader:
            scores = net(left) @ net(right).T / 0.07
            loss = nn.functional.cross_entropy(scores, torch.arange(len(left)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.save_every == 0:
                save(path, net, optimizer, step)
            if step % 40 == 0:
                print(f"{step=} loss={loss.item():.4f}", flush=True)
            if not told and time.monotonic() - begun > 10:
                told = True
                print("ONSET", flush=True)


if __name__ == "__main__":
    main()
