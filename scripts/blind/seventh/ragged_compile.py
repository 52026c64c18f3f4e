"""FIELD
source: own: torch.compile of a step whose Python arguments change with each batch; the limit of recompilations was raised
mechanism: the first epoch has padded batches; then packing gives every batch another tuple of segment lengths, which
    are Python constants of the compiled function, so that dynamo compiles again in each step
needs: none
ranks: 1
onset: printed
state: slow
cause: recompiling, compiling
blame: none
twin: none
"""
import logging
import random
import signal
import time

import torch
import torch._dynamo
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
for name in ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit", "accumulated_cache_size_limit"):
    if hasattr(torch._dynamo.config, name):
        setattr(torch._dynamo.config, name, 100_000)


class Mixer(nn.Module):
    """Attention within each segment of a packed sequence."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x, lengths):
        pieces = []
        for part in self.qkv(self.norm(x)).split(lengths):
            q, k, v = part.view(part.shape[0], 3, self.heads, -1).permute(1, 2, 0, 3)
            weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
            pieces.append((weights @ v).transpose(0, 1).flatten(1))
        x = x + self.out(torch.cat(pieces))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Packed(nn.Module):
    def __init__(self, vocab=200, width=64, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Mixer(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens, lengths):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, lengths)
        return self.head(x)


def padded():
    while True:
        yield (48,) * 8


def packed(total=384):
    while True:
        cuts = sorted(random.sample(range(8, total - 8), 7))
        yield tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def train():
    signal.alarm(300)
    torch.set_num_threads(1)
    model = Packed()
    step_fn = torch.compile(model, backend="eager", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    shapes, began, step, packing = padded(), time.monotonic(), 0, False
    while True:
        if not packing and time.monotonic() - began > 20:
            shapes, packing = packed(), True
            logging.info("epoch 2: sequences are packed now")
            print("ONSET", flush=True)
        lengths = next(shapes)
        tokens = torch.randint(200, (sum(lengths),))
        loss = nn.functional.cross_entropy(step_fn(tokens, lengths), tokens.roll(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.01)
        if step % (20 if packing else 200) == 0:
            logging.info("step %d loss %.4f, %.2f steps/s", step, loss.item(), step / (time.monotonic() - began))


if __name__ == "__main__":
    train()
