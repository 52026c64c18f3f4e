"""FIELD
source: NVIDIA/Megatron-LM#795 ("building the indices on rank 0 ..."); the others wait at a barrier
mechanism: after the first corpus all three ranks load the second; its tokens and its sample index are missing in the
    cache, so rank 0 tokenises it in Python for minutes and writes a part file now and then, and the others wait at
    the barrier
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import array
import collections
import heapq
import os
import pathlib
import random
import re
import shutil
import signal
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

SYLLABLES = ["ka", "lo", "mi", "ten", "ru", "sha", "vo", "nel", "pri", "dan", "os", "ti"]
PATTERN = re.compile(r"\w+|[^\w\s]")


def document(rng):
    words = ("".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(rng.randint(80, 200)))
    return " ".join(words) + "."


def merges(symbols, ranks):
    """Byte pair encoding of one word with a heap of candidate pairs."""
    while len(symbols) > 1:
        pairs = [(ranks.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))]
        heapq.heapify(pairs)
        rank, at = pairs[0]
        if rank == 1 << 30:
            break
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return symbols


class IndexedCorpus:
    def __init__(self, folder, name, documents, seed):
        self.folder, self.name, self.documents, self.seed = folder, name, documents, seed
        self.path = folder / f"{name}.bin"

    def build(self):
        rng = random.Random(self.seed)
        counts = collections.Counter(a + b for w in document(rng).split() for a, b in zip(w, w[1:], strict=False))
        ranks = {tuple(pair): i for i, (pair, _) in enumerate(counts.most_common(200))}
        out, vocab, parts = array.array("H"), {}, 0
        for number in range(self.documents):
            for token in PATTERN.findall(document(rng)):
                for symbol in merges(list(token), ranks):
                    out.append(vocab.setdefault(symbol, len(vocab)) % 1024)
            if number % 4000 == 3999:
                with open(self.folder / f"{self.name}.{parts}.part", "wb") as f:
                    out.tofile(f)
                parts += 1
        with open(self.path, "wb") as f:
            out.tofile(f)

    def tokens(self):
        return torch.frombuffer(bytearray(self.path.read_bytes()), dtype=torch.int16).long().remainder(1024)


def load(corpus, rank):
    if rank == 0 and not corpus.path.exists():
        print(f"> could not find the index of {corpus.name}, building it on rank 0 ...", flush=True)
        corpus.build()
    dist.barrier()
    return corpus.tokens()


class Gpt(nn.Module):
    def __init__(self, width=96, context=48):
        super().__init__()
        self.embed, self.place = nn.Embedding(1024, width), nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(context)

    def forward(self, x):
        return self.body(self.embed(x) + self.place, mask=self.mask, is_causal=True) @ self.embed.weight.T


def main(rank, world, folder):
    signal.alarm(300)
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(minutes=30))
    model = nn.parallel.DistributedDataParallel(Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    corpora = [IndexedCorpus(folder, "small", 60, 1), IndexedCorpus(folder, "web", 400_000, 2)]
    for number, corpus in enumerate(corpora):
        if number and rank == 0:
            print("ONSET", flush=True)
        tokens = load(corpus, rank)
        until = torch.tensor([time.time() + 14.0], dtype=torch.double)
        dist.broadcast(until, 0)
        step, more = 0, torch.ones(1)
        while more.item():
            at = torch.randint(len(tokens) - 49, (6,))
            batch = torch.stack([tokens[i : i + 49] for i in at])
            loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.03)
            step += 1
            more.fill_(float(time.time() < until.item()))
            dist.all_reduce(more, dist.ReduceOp.MIN)
            if rank == 0 and step % 25 == 0:
                print(f"{corpus.name} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    os.environ["OMP_NUM_THREADS"] = "1"
    where = pathlib.Path(tempfile.mkdtemp(prefix="corpora_"))
    try:
        mp.start_processes(main, args=(3, where), nprocs=3, start_method="fork")
    finally:
        shutil.rmtree(where, ignore_errors=True)
