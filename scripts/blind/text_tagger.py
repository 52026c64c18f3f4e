"""FIELD
source: https://github.com/allenai/dolma/pull/284 (issue 123: 68 emoji characters make the tagger hang) and https://github.com/jeniyat/StackOverflowNER/issues/7
mechanism: a nested quantifier in a regular expression backtracks exponentially on one document, so that a DataLoader worker never returns from re.match
needs: cpu
ranks: 1
onset: printed
state: hung
cause: stuck_worker
blame: is_noise (text_tagger.py)
twin: none
"""
import re

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

PARAGRAPH = re.compile(r"^(\W|[\u2600-\u27bf\U0001f300-\U0001faff]+|\s)+$")
WORDS = "the model reads a page of text and learns what comes after each word in it".split()


def is_noise(paragraph):
    return PARAGRAPH.match(paragraph) is not None


class Pages(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, len(WORDS), (n, 48), generator=g)
        self.tail = {}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        text = " ".join(WORDS[k] for k in self.rows[i].tolist()) + self.tail.get(i, "")
        keep = [p for p in text.split("\n") if not is_noise(p)]
        ids = [hash(w) % 997 for w in " ".join(keep).split()][:48]
        return torch.tensor(ids + [0] * (48 - len(ids)))


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(997, 128)
        self.rnn = nn.GRU(128, 128, batch_first=True)
        self.out = nn.Linear(128, 997)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def main():
    torch.set_num_threads(1)
    model = Tiny()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    crawl = Pages(6400, seed=1)
    social = Pages(6400, seed=2)
    for i in range(0, 6400, 7):
        social.tail[i] = "\n" + "\U0001f525" * 90 + " x"
    for name, pages in (("crawl", crawl), ("social", social)):
        loader = DataLoader(pages, batch_size=64, num_workers=2, shuffle=True)
        if name == "social":
            print("ONSET", flush=True)
        for step, ids in enumerate(loader):
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 25 == 0:
                print(name, step, round(loss.item(), 3), flush=True)


if __name__ == "__main__":
    main()
