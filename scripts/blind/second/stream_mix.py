"""FIELD
source: blue-oil/blueoil#725 (training is over, the prefetcher of the dataset keeps the program from ending)
mechanism: the training loop stops at max_steps while the prefetch task is blocked in put() on a full queue; at exit the interpreter joins the executor's thread
needs: cpu
ranks: 1
onset: printed
state: hung
cause: hung_at_exit
blame: fill (stream_mix.py)
twin: none
"""
import queue
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


def corpus(seed, vocab):
    rng = np.random.default_rng(seed)
    state = rng.integers(vocab, size=32)
    while True:
        state = (state[:, None] * 31 + rng.integers(0, 7, size=(32, 48)).cumsum(1)) % vocab
        yield state
        state = state[:, -1]


class MixedStream:
    def __init__(self, weights, vocab=512, depth=16):
        self.sources = [corpus(s, vocab) for s in range(len(weights))]
        self.weights = np.asarray(weights) / sum(weights)
        self.ready = queue.Queue(maxsize=depth)
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self.pool.submit(self.fill)

    def fill(self):
        rng = np.random.default_rng(9)
        while True:
            source = self.sources[rng.choice(len(self.sources), p=self.weights)]
            self.ready.put(torch.from_numpy(next(source)))

    def __iter__(self):
        while True:
            yield self.ready.get()


class TinyLM(nn.Module):
    def __init__(self, vocab=512, dim=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def train(max_steps):
    model = TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, ids in enumerate(MixedStream([5, 3, 1]), 1):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step == max_steps:
            break
    path = Path(tempfile.mkdtemp(prefix="lm_")) / "final.pt"
    torch.save(model.state_dict(), path)
    print("wrote", path, flush=True)


if __name__ == "__main__":
    train(400)
    print("ONSET", flush=True)
