"""FIELD
source: own: cleaning of crawled text with a back-referencing regex, quadratic in the length of a page
mechanism: the next data shard is filtered inline; re.subn over a long page keeps the GIL for many seconds per page,
    the heartbeat thread waits meanwhile; page after page gets done, some forty in all
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host
blame: none
twin: none
"""
import random
import re
import signal
import tempfile
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

REPEATED = re.compile(r"(?P<block>\w[^\n]{30,60}\w)(?=[\s\S]*(?P=block))")
MARKUP = re.compile(r"<[^>]+>|&[a-z]+;")


def heartbeat(path, state):
    with open(path, "a", buffering=1) as out:
        while True:
            out.write(f"{time.time():.1f} {state['step']}\n")
            time.sleep(1)


class CrawlShard:
    def __init__(self, number, pages, length):
        self.rng = random.Random(number)
        self.pages, self.length = pages, length

    def raw(self):
        words = ["".join(self.rng.choices("abcdefghilmnoprstu", k=self.rng.randint(2, 9))) for _ in range(900)]
        for _ in range(self.pages):
            lines, size = [], 0
            while size < self.length:
                line = " ".join(self.rng.choices(words, k=11)) + " <br> "
                lines.append(line)
                size += len(line)
            lines.append(lines[3])  # a footer that repeats
            yield "\n".join(lines)


def clean(page):
    page = MARKUP.sub(" ", page)
    page, removed = REPEATED.subn("", page)
    return page.encode(), removed


def load(shard):
    kept = bytearray()
    for page in shard.raw():
        text, _ = clean(page)
        kept += text
    return torch.frombuffer(kept, dtype=torch.uint8)


class ByteLM(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(3))
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        for i, conv in enumerate(self.convs):
            x = x + F.gelu(conv(F.pad(x, (2 ** (i + 1), 0))))
        return self.head(x.transpose(1, 2))


def steps(model, opt, data, seconds, state):
    stop = time.time() + seconds
    while time.time() < stop:
        at = torch.randint(len(data) - 129, (12,)).tolist()
        batch = torch.stack([data[i : i + 129] for i in at]).long()
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        state["step"] += 1
        if state["step"] % 20 == 0:
            print(f"it {state['step']:5d}  bpb {loss.item() / 0.6931:.3f}", flush=True)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    state = {"step": 0}
    model = ByteLM()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with tempfile.NamedTemporaryFile("w") as beat:
        threading.Thread(target=heartbeat, args=(beat.name, state), daemon=True).start()
        steps(model, opt, load(CrawlShard(0, 2, 2_000)), 9, state)
        print("loading shard 1", flush=True)
        print("ONSET", flush=True)
        data = load(CrawlShard(1, 40, 13_000))
        steps(model, opt, data, 3600, state)


if __name__ == "__main__":
    main()
